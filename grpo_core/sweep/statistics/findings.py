"""What the statistics found, and which arm is the best: the one source of the words, the tables and the pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.sweep.arms import Arm
from grpo_core.sweep.measures import DRIFTS
from grpo_core.sweep.statistics.effects import Comparison, KnobEffects, arm_differences, knob_effects, mean_and_half_width
from grpo_core.sweep.statistics.interactions import Interaction, find_interactions
from grpo_core.sweep.statistics.runs import SweepFacts, SweepRuns


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the statistics found."""

    sweep: SweepRuns
    effects: dict[str, KnobEffects]
    """By outcome."""
    interactions: dict[str, tuple[Interaction, ...]]
    """By outcome: of the objective and of the drift."""
    differences: tuple[Comparison, ...]
    """All pairs of arms in the objective."""

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
        return self.difference is not None and self.difference.is_alone and self.lead > 0

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
    """The ranked arms without the best one, in their order."""


@dataclass(frozen=True, kw_only=True)
class BoundCheck:
    """The arms with complete runs, by whether they keep the bound."""

    within: tuple[Arm, ...]
    over: tuple[Arm, ...]
    """Mean drift above the bound, or unknown while there is one."""
    drifts: dict[int, float]
    """Arm number -> mean drift over its complete runs; NaN where one of them has none."""


def find(sweep: SweepRuns, outcomes: Sequence[str]) -> Findings:
    """Return the statistics of a sweep, with one family of knob effects per outcome."""
    drift = drift_measure(sweep)
    crossed = [outcome for outcome in outcomes if outcome in ("objective", drift)]
    return Findings(
        sweep=sweep,
        effects={outcome: knob_effects(sweep, outcome) for outcome in outcomes},
        interactions={outcome: find_interactions(sweep, outcome) for outcome in crossed},
        differences=arm_differences(sweep),
    )


def drift_measure(sweep: SweepRuns) -> str | None:
    """Return the column that holds the drift of the most complete runs, of equal ones the exact one; None without any."""
    known = {measure: sum(map(len, sweep.values(measure).values())) for measure in DRIFTS}
    best = max(known, key=lambda measure: known[measure])  # of equal ones the first, which is the better
    return best if known[best] else None


def best_arm(findings: Findings) -> Best | None:
    """Return the best arm and how it stands against the others; None where no run is complete or every arm over the bound."""
    bound = check_bound(findings.sweep)
    if not bound.within:
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


def check_bound(sweep: SweepRuns) -> BoundCheck:
    """Return which arms with complete runs keep `facts.kl_bound`, by the mean `drift` of these runs; all without a bound.

    A run whose drift is unknown makes the mean unknown, and what is unknown keeps no bound.
    """
    runs = sweep.complete
    by_arm = {arm.number: runs.loc[runs["arm"] == arm.number, "drift"].tolist() for arm in sweep.arms}
    drifts = {number: math.fsum(of_arm) / len(of_arm) for number, of_arm in by_arm.items() if of_arm}
    arms, bound = [arm for arm in sweep.arms if arm.number in drifts], sweep.facts.kl_bound
    within = tuple(arm for arm in arms if bound is None or drifts[arm.number] <= bound)
    return BoundCheck(within=within, over=tuple(arm for arm in arms if arm not in within), drifts=drifts)


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
