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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_core.sweep.arms import Arm
from grpo_core.sweep.display import DRIFTS, OUTCOMES
from grpo_core.sweep.schema import SweepConfig
from grpo_core.sweep.statistics.effects import (
    Association,
    Difference,
    Statement,
    adjust,
    arm_differences,
    find_interactions,
    knob_effects,
    mean_and_half_width,
)
from grpo_core.sweep.statistics.runs import SweepRuns, as_level

QUESTION_SHARE = 0.6
"""Of the family's 5 %: what the question has, where the sweep names one."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the statistics found."""

    sweep: SweepRuns
    effects: dict[str, tuple[Difference | Association, ...]]
    """By outcome: of each knob, the question first."""
    interactions: dict[str, tuple[Difference, ...]]
    """By outcome: of the objective and of the drift."""
    differences: tuple[Difference, ...]
    """All pairs of arms in the objective."""
    sentences: tuple[Statement, ...]
    """Those of the above that the answer is made of, the question first: one family."""
    question: tuple[Difference | Association, ...]

    def contrasts(self, outcome: str, *knobs: str) -> list[Difference]:
        """Return the contrasts of some knobs for an outcome, of all where none is named."""
        of_outcome = [one for one in self.effects[outcome] if isinstance(one, Difference)]
        return [one for one in of_outcome if not knobs or one.knob in knobs]

    def associations(self, outcome: str) -> dict[str, Association]:
        """Return sampled knob -> its association; knobs with contrasts or one level have none."""
        return {one.knob: one for one in self.effects[outcome] if isinstance(one, Association)}


def find(sweep: SweepRuns, outcomes: Sequence[str] = OUTCOMES) -> Findings:
    """Return the statistics of a sweep, what the answer says of them adjusted as one family."""
    effects = {outcome: knob_effects(sweep, outcome) for outcome in outcomes}
    question = tuple(one for one in effects["objective"] if _is_asked(sweep.config, one))
    told = [outcome for outcome in outcomes if outcome in ("objective", drift_measure(sweep))]
    groups: dict[str, tuple[Any, ...]] = {"question": question, "arms": arm_differences(sweep)}
    for outcome in told:
        others = tuple(one for one in effects[outcome] if one not in question)
        groups |= {f"knobs {outcome}": others, f"crossed {outcome}": find_interactions(sweep, outcome)}
    groups = _one_family(groups, is_interim=sweep.awaited[0] > 0)
    of_knobs = {outcome: groups[f"knobs {outcome}"] for outcome in told}
    of_knobs["objective"] = groups["question"] + of_knobs["objective"]
    return Findings(
        sweep=sweep,
        effects=effects | of_knobs,
        interactions={outcome: groups[f"crossed {outcome}"] for outcome in told},
        differences=groups["arms"],
        sentences=tuple(one for group in groups.values() for one in group),
        question=groups["question"],
    )


def _is_asked(config: SweepConfig, found: Difference | Association) -> bool:
    """Return whether a statement about the objective is one of the question that the sweep named."""
    asked = config.primary
    if asked is None or found.knob != asked.knob:
        return False
    return asked.levels is None or (
        isinstance(found, Difference) and {found.first, found.second} == set(map(as_level, asked.levels))
    )


def _one_family(groups: dict[str, tuple[Any, ...]], *, is_interim: bool) -> dict[str, tuple[Any, ...]]:
    """Return groups of statements adjusted as one family, the question and the other groups each with its share."""
    shares = statement_shares({name: sum(not math.isnan(one.family_p) for one in group) for name, group in groups.items()})
    weights = [shares[name] for name, group in groups.items() for _ in group]
    adjusted = iter(adjust([one for group in groups.values() for one in group], weights, is_interim=is_interim))
    return {name: tuple(next(adjusted) for _ in group) for name, group in groups.items()}


def statement_shares(tested: Mapping[str, int]) -> dict[str, float]:
    """Return the share of the family's 5 % that a statement of each group has, from how many of the group are tested.

    >>> statement_shares({"question": 1, "arms": 4, "knobs objective": 2})
    {'question': 0.6, 'arms': 0.05, 'knobs objective': 0.1}
    """
    others = sum(bool(count) for name, count in tested.items() if name != "question")
    rest = 1 - QUESTION_SHARE if tested["question"] else 1.0
    return {
        name: (QUESTION_SHARE if name == "question" else rest / max(1, others)) / max(1, count)
        for name, count in tested.items()
    }


def drift_measure(sweep: SweepRuns) -> str | None:
    """Return the column that holds the drift of the most complete runs, of equal ones the exact one; None without any."""
    known = {measure: sum(map(len, sweep.values[measure].values())) for measure in DRIFTS}
    best = max(known, key=lambda measure: known[measure])  # of equal ones the first, which is the better
    return best if known[best] else None


def ranked_arms(sweep: SweepRuns) -> tuple[list[Arm], int]:
    """Return the arms with the most complete seeds that keep the bound, the highest mean objective first, and how many seeds.

    Empty where no run is complete, every arm is over the bound, or planned runs are to come: what claims nothing names none.
    """
    values = sweep.values["objective"]
    arms = () if sweep.awaited[0] else sweep.within
    seeds = max((len(values[arm.number]) for arm in arms), default=0)
    full = [arm for arm in arms if len(values[arm.number]) == seeds]
    return sorted(full, key=lambda arm: (-mean_and_half_width(values[arm.number].values())[0], arm.number)), seeds


def shrunken_means(sweep: SweepRuns, arms: Sequence[Arm]) -> dict[int, float]:
    """Return arm number -> mean objective, shrunk towards the mean of all: what new runs of the best of them would be like.

    Empirical Bayes (James & Stein 1961; Efron & Morris 1975, JASA 70(350)): m + max(0, 1 - e^2 / s^2) (m_i - m), with s^2 the
    variance of the means m_i and e^2 their error, the residual mean square of arms x seeds over the number of seeds, so that
    what a seed does to every arm is in neither. The best of 18 equal arms lies 1.8 standard errors above their mean by luck.
    NaN below two arms, or seeds that all of them have.
    """
    values = sweep.values["objective"]
    seeds = sorted(set.intersection(*(set(values[arm.number]) for arm in arms))) if arms else []
    if len(arms) < 2 or len(seeds) < 2:
        return {arm.number: math.nan for arm in arms}
    table = np.array([[values[arm.number][seed] for seed in seeds] for arm in arms])
    means = table.mean(axis=1)
    residual = table - means[:, None] - table.mean(axis=0) + means.mean()
    error = float((residual**2).sum()) / ((len(arms) - 1) * (len(seeds) - 1) * len(seeds))
    kept = max(0.0, 1 - error / spread) if (spread := float(means.var(ddof=1))) > 0 else 0.0
    return {arm.number: float(means.mean() + kept * (own - means.mean())) for arm, own in zip(arms, means, strict=True)}
