"""What the statistics found, and which arm is the best: the one source of the words, the tables and the pictures.

What a report says in sentences is one family: in at most 5 % of sweeps in which nothing differs is any sentence a false claim.
It consists of groups (knobs and interactions, in the objective and in the drift, and pairs of arms), and the 5 % are divided
evenly between the groups, and evenly within each, by a weighted Holm procedure: 153 pairs of arms take nothing from 7 contrasts
of knobs. Where the sweep names its question (`primary`), that has 60 % of the 5 % and everything else, which is exploratory,
40 %: tested at 0.03 and 0.02, and what is claimed passes its share on, so that a question that is answered leaves 0.05 to the
rest. (The alternative, the rest being tested only once the question is answered, holds 5 % as well, but says nothing at all
where it is not.) The other outcomes explain: no sentence is about them, and each is a family of its own in its table.

Nothing is claimed while planned runs are still to come: who reads the report after every seed and stops at a claim would
otherwise make a false one in 16 % of sweeps of five seeds that have nothing to find.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grpo_core.sweep.arms import Arm
from grpo_core.sweep.measures import DRIFTS
from grpo_core.sweep.statistics.effects import (
    Association,
    Comparison,
    Interaction,
    KnobEffects,
    Statement,
    adjust,
    arm_differences,
    find_interactions,
    knob_effects,
    mean_and_half_width,
)
from grpo_core.sweep.statistics.paired import smallest_t, standard_error
from grpo_core.sweep.statistics.runs import SweepFacts, SweepRuns

QUESTION_SHARE = 0.6
"""Of the family's 5 %: what the question has, where the sweep names one."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the statistics found."""

    sweep: SweepRuns
    effects: dict[str, KnobEffects]
    interactions: dict[str, tuple[Interaction, ...]]
    """By outcome: of the objective and of the drift."""
    differences: tuple[Comparison, ...]
    """All pairs of arms in the objective."""
    sentences: tuple[Statement, ...]
    """Those of the above that the answer is made of, the question first: one family."""
    question: tuple[Comparison | Association, ...]

    @property
    def facts(self) -> SweepFacts:
        """What the sweep asked."""
        return self.sweep.facts


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A ranked arm beside the best one."""

    arm: Arm
    difference: Comparison | None
    """Between the two; None where they share no seed."""

    @property
    def is_beaten(self) -> bool:
        """Whether the best arm is better after Holm's correction."""
        return self.difference is not None and self.difference.is_claim and self.lead > 0

    @property
    def is_beaten_alone(self) -> bool:
        """Whether the best arm is better by the interval of this pair alone, and no longer after the correction."""
        return self.difference is not None and self.difference.is_significant_uncorrected and self.lead > 0

    @property
    def lead(self) -> float:
        """How far the best arm is ahead in the seeds that both have; it can be negative where the two lack different seeds."""
        if self.difference is None:
            return math.nan
        return self.difference.estimate.mean * (1 if self.difference.first == self.arm.number else -1)


@dataclass(frozen=True, kw_only=True)
class Best:
    """The arm with the highest mean objective among those within the bound on the drift with the most complete seeds."""

    arm: Arm
    ranked: tuple[Arm, ...]
    """All arms that were compared, the best first; none of them is over the bound."""
    unranked: tuple[Arm, ...]
    """Arms that are not over the bound, with fewer complete seeds: what they lack is not comparable."""
    seeds: int
    rivals: tuple[Rival, ...]


@dataclass(frozen=True, kw_only=True)
class BoundCheck:
    """The arms with complete runs, by whether they keep the bound."""

    within: tuple[Arm, ...]
    over: tuple[Arm, ...]
    """Upper end of the drift above the bound, or unknown while there is one."""
    drifts: dict[int, float]
    """Arm number -> mean drift over its complete runs; NaN where one of them has none."""
    upper: dict[int, float]
    """Arm number -> upper end of the 95 % interval of that mean, with one seed the mean: what the bound is compared with."""


def find(sweep: SweepRuns, outcomes: Sequence[str]) -> Findings:
    """Return the statistics of a sweep, what the answer says of them adjusted as one family."""
    drift = drift_measure(sweep)
    effects = {outcome: knob_effects(sweep, outcome) for outcome in outcomes}
    crossed = {outcome: find_interactions(sweep, outcome) for outcome in outcomes if outcome in ("objective", drift)}
    groups: dict[str, tuple[Statement, ...]] = {"question": (), "arms": arm_differences(sweep)}
    for outcome, interactions in crossed.items():
        about: list[Comparison | Association] = [*effects[outcome].contrasts, *effects[outcome].associations]
        asked = [one for one in about if outcome == "objective" and _is_asked(sweep.facts, one)]
        groups["question"] += tuple(asked)
        groups |= {f"knobs {outcome}": tuple(one for one in about if one not in asked), f"crossed {outcome}": interactions}
    sentences = _one_family(groups, is_interim=sweep.awaited[0] > 0)
    for outcome in crossed:
        of_outcome = [one for one in (*sentences["question"], *sentences[f"knobs {outcome}"]) if one.outcome == outcome]
        effects[outcome] = replace(
            effects[outcome],
            contrasts=tuple(one for one in of_outcome if isinstance(one, Comparison)),
            associations=tuple(one for one in of_outcome if isinstance(one, Association)),
        )
    return Findings(
        sweep=sweep,
        effects=effects,
        interactions={
            outcome: tuple(one for one in sentences[f"crossed {outcome}"] if isinstance(one, Interaction))
            for outcome in crossed
        },
        differences=tuple(one for one in sentences["arms"] if isinstance(one, Comparison)),
        sentences=tuple(one for group in sentences.values() for one in group),
        question=tuple(one for one in sentences["question"] if isinstance(one, Comparison | Association)),
    )


def _is_asked(facts: SweepFacts, found: Comparison | Association) -> bool:
    """Return whether a statement about the objective is one of the question that the sweep named."""
    asked = facts.primary
    if asked is None or found.knob != asked.knob:
        return False
    return asked.levels is None or (isinstance(found, Comparison) and {found.first, found.second} == set(asked.levels))


def _one_family(groups: dict[str, tuple[Statement, ...]], *, is_interim: bool) -> dict[str, tuple[Statement, ...]]:
    """Return groups of statements adjusted as one family, the question and the other groups each with its share."""
    tested = {name: sum(not math.isnan(one.family_p) for one in group) for name, group in groups.items()}
    others = sum(bool(count) for name, count in tested.items() if name != "question")
    rest = 1 - QUESTION_SHARE if tested["question"] else 1.0
    shares = {
        name: (QUESTION_SHARE if name == "question" else rest / max(1, others)) / max(1, count)
        for name, count in tested.items()
    }
    weights = [shares[name] for name, group in groups.items() for _ in group]
    adjusted = iter(adjust([one for group in groups.values() for one in group], weights, is_interim=is_interim))
    return {name: tuple(next(adjusted) for _ in group) for name, group in groups.items()}


def drift_measure(sweep: SweepRuns) -> str | None:
    """Return the column that holds the drift of the most complete runs, of equal ones the exact one; None without any."""
    known = {measure: sum(map(len, sweep.values(measure).values())) for measure in DRIFTS}
    best = max(known, key=lambda measure: known[measure])  # of equal ones the first, which is the better
    return best if known[best] else None


def best_arm(findings: Findings) -> Best | None:
    """Return the best arm and how it stands against the others.

    None where no run is complete, every arm is over the bound, or planned runs are to come: what claims nothing names none.
    """
    bound = check_bound(findings.sweep)
    if not bound.within or findings.sweep.awaited[0]:
        return None
    ranked, seeds = rank(findings.sweep, bound.within)
    best = ranked[0]
    pairs = {frozenset((found.first, found.second)): found for found in findings.differences}
    return Best(
        arm=best,
        ranked=tuple(ranked),
        unranked=tuple(arm for arm in findings.sweep.arms if arm not in ranked and arm not in bound.over),
        seeds=seeds,
        rivals=tuple(Rival(arm=arm, difference=pairs.get(frozenset((best.number, arm.number)))) for arm in ranked[1:]),
    )


def rank(sweep: SweepRuns, arms: Sequence[Arm]) -> tuple[list[Arm], int]:
    """Return those of some arms with the most complete seeds, the highest mean objective first, and how many seeds."""
    values = sweep.values("objective")
    seeds = max(len(values[arm.number]) for arm in arms)
    full = [arm for arm in arms if len(values[arm.number]) == seeds]
    return sorted(full, key=lambda arm: (-mean_and_half_width(values[arm.number].values())[0], arm.number)), seeds


def shrunken_means(sweep: SweepRuns, arms: Sequence[Arm]) -> dict[int, float]:
    """Return arm number -> mean objective, shrunk towards the mean of all: what new runs of the best of them would be like.

    Empirical Bayes (James & Stein 1961; Efron & Morris 1975, JASA 70(350)): m + max(0, 1 - e^2 / s^2) (m_i - m), with s^2 the
    variance of the means m_i and e^2 their error, the residual mean square of arms x seeds over the number of seeds, so that
    what a seed does to every arm is in neither. The best of 18 equal arms lies 1.8 standard errors above their mean by luck.
    NaN below two arms, or seeds that all of them have.
    """
    values = sweep.values("objective")
    seeds = sorted(set.intersection(*(set(values[arm.number]) for arm in arms))) if arms else []
    if len(arms) < 2 or len(seeds) < 2:
        return {arm.number: math.nan for arm in arms}
    table = np.array([[values[arm.number][seed] for seed in seeds] for arm in arms])
    means = table.mean(axis=1)
    residual = table - means[:, None] - table.mean(axis=0) + means.mean()
    error = float((residual**2).sum()) / ((len(arms) - 1) * (len(seeds) - 1) * len(seeds))
    kept = max(0.0, 1 - error / spread) if (spread := float(means.var(ddof=1))) > 0 else 0.0
    return {arm.number: float(means.mean() + kept * (own - means.mean())) for arm, own in zip(arms, means, strict=True)}


def check_bound(sweep: SweepRuns) -> BoundCheck:
    """Return which arms with complete runs keep `facts.kl_bound`; all without a bound.

    What keeps it is the upper end of Student's 95 % interval of the mean `drift` of an arm's complete runs, one-sided: an arm
    whose drift is the bound is kept in 5 % of sweeps, not in half of them. One seed has no interval; there the drift itself is
    compared. A run whose drift is unknown makes the mean unknown, and what is unknown keeps no bound.
    """
    runs = sweep.complete
    by_arm = {arm.number: runs.loc[runs["arm"] == arm.number, "drift"].tolist() for arm in sweep.arms}
    drifts = {number: math.fsum(of_arm) / len(of_arm) for number, of_arm in by_arm.items() if of_arm}
    # One-sided at 5 % is two-sided at 10 %: as many comparisons as half a one.
    errors = {
        number: smallest_t(len(by_arm[number]), 0.5) * standard_error(by_arm[number]) if len(by_arm[number]) > 1 else 0.0
        for number in drifts
    }
    upper = {number: drift + errors[number] for number, drift in drifts.items()}
    arms, bound = [arm for arm in sweep.arms if arm.number in drifts], sweep.facts.kl_bound
    within = tuple(arm for arm in arms if bound is None or upper[arm.number] <= bound)
    return BoundCheck(within=within, over=tuple(arm for arm in arms if arm not in within), drifts=drifts, upper=upper)


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the non-dominated points (cost, gain), by rising cost.

    A point is dominated if another costs no more and gains no less, and is better in one of the two. Of equal points all stay.
    Points with a NaN are left out.

    >>> frontier([(1.0, 0.5), (2.0, 0.4), (3.0, 0.9), (0.5, 0.1)])
    [3, 0, 2]
    """
    order = sorted((cost, -gain, index) for index, (cost, gain) in enumerate(points) if cost == cost and gain == gain)  # noqa: PLR0124
    kept: list[int] = []
    for cost, loss, index in order:
        if not kept or -loss > points[kept[-1]][1] or (cost, -loss) == points[kept[-1]]:
            kept.append(index)
    return kept
