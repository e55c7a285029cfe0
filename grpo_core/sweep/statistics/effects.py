"""Effects of knobs, their interactions, and differences between arms, each paired within seeds; association of sampled knobs.

A contrast of two levels of a knob uses matched pairs only: within a seed, arms that agree in every other knob and have both
levels complete. Their differences are averaged within the seed, and the seeds are the sample. Arms that lack a partner do not
enter, so that a pruned or failed run takes its partner with it and not the fairness of the comparison.

A knob has no contrasts where no two arms agree in all other knobs, or where a sampler drew more than 8 numbers for it. Then its
effect is an association over sampled arms: Spearman's rank correlation between the knob and the arms' means.

Does the effect of one knob depend on another? An interaction is a contrast of contrasts: of two levels of a knob and two of
another, the difference between the knob's levels at the second level of the other one, minus the same difference at the first.
Within a seed it is taken at each setting of the remaining knobs where all four cells are complete, and averaged over them.
Knobs without matched arms have none.

Statements about knobs for one outcome, interactions for one outcome and pairs of arms are a group each:
their variances are moderated within it, and here they are Holm-adjusted as if the group stood alone. What a report says of them
in sentences is adjusted over all groups (`findings.py`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any, TypeVar

import numpy as np

from grpo_core.config.spelling import level_name
from grpo_core.sweep.statistics.paired import (
    ALPHA,
    MODERATED_FROM,
    ROUNDING,
    PairedEstimate,
    holm,
    moderated_p,
    paired_estimate,
    rank_correlation,
    t_interval,
    two_way_interval,
)
from grpo_core.sweep.statistics.runs import (
    Figure,
    Level,
    Levels,
    Settings,
    SweepRuns,
    cells_by_seed,
    is_number,
    matched,
    mean,
)

MAX_LEVELS = 8
"""A knob with more numeric levels than this is treated as continuous where a sampler drew them; a grid's levels were chosen."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Something about an outcome that is tested, in a family of such statements."""

    outcome: str
    knob: str
    """Empty: it is about two arms."""
    p: float
    """The p-value by itself: of the paired t test, or of permutations; NaN where nothing is tested."""
    family_p: float
    """The p-value that enters Holm's correction: `p`, from 5 seeds on `moderated_p`, where every seed shows the same difference
    that of the sign test."""
    moderated_p: float = math.nan
    """Of the moderated t among the statements of its group."""
    holm_p: float = math.nan
    """After Holm's correction in its family; NaN where nothing is tested."""
    family_size: float = 1
    """By how many its share of the 5 % is divided: the statements of the family that are tested, with their weights."""
    is_interim: bool = False
    """Whether planned runs are still to come: then nothing is claimed."""

    @property
    def is_claim(self) -> bool:
        """Whether it stands after Holm's correction, all planned runs being in."""
        return self.holm_p <= ALPHA and not self.is_interim


AnyStatement = TypeVar("AnyStatement", bound=Statement)


@dataclass(frozen=True, kw_only=True)
class Association(Statement):
    """Spearman's rank correlation of a sampled knob and an outcome over arm means."""

    rho: float
    """NaN where one side does not vary or there are fewer than 3 arms."""
    arms: int
    left_out: int
    """Arms whose level is not a number: null, except a sync period that is never, which ranks as the longest."""
    reason: str
    """Why levels are not compared in matched pairs, in words."""


@dataclass(frozen=True, kw_only=True)
class Difference(Statement):
    """A paired difference of an outcome, `second` minus `first`: of two levels of a knob, or of two arms by their numbers.

    An interaction: how far that of two levels differs between two levels of another knob, at_second minus at_first.
    """

    first: Level
    second: Level
    first_name: str
    second_name: str
    other: str = ""
    at_first: Level = None
    at_second: Level = None
    differences: tuple[float, ...]
    estimate: PairedEstimate
    pairs: int
    """Pairs of runs, or sets of four, that entered."""
    planned_pairs: int
    """Those that would have entered had every run been complete."""
    new_prompts: tuple[float, float]
    """95 % interval for other seeds and other prompts; NaN where no figures by prompt are known."""
    most: float = math.inf
    """The largest that it can be: 1 for a share, 2 for an interaction in one."""

    @property
    def is_claim(self) -> bool:
        """Whether it stands after Holm's correction, all planned runs being in, and its own interval excludes 0."""
        return super().is_claim and self.estimate.excludes_zero

    @property
    def is_alone(self) -> bool:
        """Whether its own interval excludes 0 although it does not stand after the correction: neither result nor nothing."""
        return not self.is_claim and self.estimate.excludes_zero

    @property
    def name(self) -> str:
        """Both levels, as a table has them: `0.1 − 0.04`."""  # noqa: RUF002 - a minus between two numbers
        return f"{self.second_name} − {self.first_name}"  # noqa: RUF001

    @cached_property
    def simultaneous_interval(self) -> tuple[float, float]:
        """Bonferroni interval at its share of the family's 5 %, which holds with those of the whole family at once."""
        if self.estimate.spread == "varies":
            return t_interval(self.differences, comparisons=self.family_size)
        # Two seeds that agree to the last digit bound nothing, unless they agree on 0.
        return (0.0, 0.0) if self.estimate.spread == "identical" else (math.nan, math.nan)


def as_family(found: Sequence[AnyStatement]) -> tuple[AnyStatement, ...]:
    """Return the statements of a group with their moderated p-values, and adjusted as if they were the only ones.

    Here alone it is decided which p-value a claim rests on.
    """
    varying = [one.differences if isinstance(one, Difference) and one.estimate.spread == "varies" else () for one in found]
    ruled = [
        replace(one, moderated_p=p, family_p=p if len(seeds) >= MODERATED_FROM and not math.isnan(p) else one.family_p)
        for one, p, seeds in zip(found, moderated_p(varying), varying, strict=True)
    ]
    return adjust(ruled, [1.0] * len(ruled))


def adjust(found: Sequence[AnyStatement], weights: Sequence[float], *, is_interim: bool = False) -> tuple[AnyStatement, ...]:
    """Return statements with the p-values and intervals that they have as one family, each with its share of the 5 %."""
    adjusted = holm([one.family_p for one in found], weights)
    total = math.fsum(weight for weight, p in zip(weights, adjusted, strict=True) if not math.isnan(p))
    return tuple(
        replace(one, holm_p=p, family_size=total / weight, is_interim=is_interim)
        for one, p, weight in zip(found, adjusted, weights, strict=True)
    )


def knob_effects(sweep: SweepRuns, outcome: str = "objective") -> tuple[Difference | Association, ...]:
    """Return the effect of every knob on an outcome, adjusted over all of them."""
    found: list[Difference | Association] = []
    for knob in sweep.varied:
        reason = unmatched_reason(sweep, knob)
        found += [_association(sweep, knob, outcome, reason)] if reason else _contrasts(sweep, knob, outcome)
    return as_family(found)


def arm_differences(sweep: SweepRuns) -> tuple[Difference, ...]:
    """Return every pair of arms that share a complete seed, in the objective, the later arm minus the earlier, adjusted."""
    found = []
    for first, second in combinations(sweep.arms, 2):
        values, others = (sweep.values["objective"][arm.number] for arm in (first, second))
        scores, other_scores = (sweep.scores[arm.number] for arm in (first, second))
        if seeds := sorted(values.keys() & others.keys()):
            of_prompts = [[(scores[seed], other_scores[seed])] for seed in seeds if scores]
            found.append(
                Difference(
                    outcome="objective",
                    knob="",
                    first=first.number,
                    second=second.number,
                    first_name=first.name,
                    second_name=second.name,
                    most=_most(sweep, "objective"),
                    **paired(sweep, 1, [[(values[seed], others[seed])] for seed in seeds], of_prompts),
                )
            )
    return as_family(found)


def mean_and_half_width(values: Iterable[float]) -> tuple[float, float]:
    """Return the mean over seeds and half of its 95 % interval (Student's), what ± is in all of a report; NaN where unknown."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) > 1 and max(known) - min(known) <= ROUNDING * max(map(abs, known)):
        return mean(known), 0.0
    low, high = t_interval(known)
    return mean(known), (high - low) / 2


def _cells(sweep: SweepRuns, knobs: Sequence[str], outcome: str) -> tuple[Settings, Any, Any]:
    """Return the settings of the other knobs, and the cells of each seed: of the outcome, and of the objective by prompt."""
    settings = sweep.settings(knobs)
    of_prompts = cells_by_seed(settings, sweep.scores) if outcome == "objective" else []
    return settings, cells_by_seed(settings, sweep.values[outcome]), of_prompts


def _contrasts(sweep: SweepRuns, knob: str, outcome: str) -> list[Difference]:
    settings, cells, of_prompts = _cells(sweep, [knob], outcome)
    found = ((first, second, matched(cells, [(first,), (second,)])) for first, second in combinations(sweep.levels(knob), 2))
    return [
        Difference(
            outcome=outcome,
            knob=knob,
            first=first,
            second=second,
            first_name=level_name(knob, first),
            second_name=level_name(knob, second),
            most=_most(sweep, outcome),
            **paired(sweep, _shared(settings, [(first,), (second,)]), pairs, matched(of_prompts, [(first,), (second,)])),
        )
        for first, second, pairs in found
        if pairs
    ]


def _association(sweep: SweepRuns, knob: str, outcome: str, reason: str) -> Association:
    values = sweep.values[outcome]
    points = [(arm.values[knob], mean(values[arm.number].values())) for arm in sweep.arms if values[arm.number]]
    # A reference that never syncs has the longest period; ranks need no more than that.
    longest = math.inf if knob == "reference.sync_steps" else None
    ranked = [(longest if level is None else level, mean) for level, mean in points]
    numbers = [(float(level), mean) for level, mean in ranked if is_number(level) or level == math.inf]
    rho, p = rank_correlation([x for x, _ in numbers], [y for _, y in numbers])
    return Association(
        outcome=outcome,
        knob=knob,
        p=p,
        family_p=p,
        rho=rho,
        arms=len(numbers),
        left_out=len(points) - len(numbers),
        reason=reason,
    )


def _shared(settings: Settings, keys: Sequence[Levels]) -> int:
    return sum(all(key in setting for key in keys) for setting in settings)


def paired(
    sweep: SweepRuns,
    shared: int,
    pairs: Sequence[Sequence[tuple[float, ...]]],
    by_prompt: Sequence[Sequence[tuple[np.ndarray, ...]]] = (),
    scale: float | None = None,
) -> dict[str, Any]:
    """Return fields of a `Difference`: the differences of matched pairs, averaged within each seed, and what they show.

    Args:
        sweep: of the runs.
        shared: settings of the other knobs in which a pair was planned.
        pairs: for each seed, (first, second) figures.
        by_prompt: the same pairs prompt by prompt; empty where they are not known.
        scale: size of the figures that rounding is measured against; of the pairs themselves if left out.
    """
    differences = tuple(mean(second - first for first, second in of_seed) for of_seed in pairs)
    largest = max(abs(value) for of_seed in pairs for pair in of_seed for value in pair)
    estimate = paired_estimate(differences, scale=largest if scale is None else scale)
    scores = np.array([mean(second - first for first, second in of_seed) for of_seed in by_prompt])
    return {
        "differences": differences,
        "estimate": estimate,
        "p": estimate.p,
        "family_p": estimate.family_p,
        "pairs": sum(map(len, pairs)),
        "planned_pairs": max(shared * len(sweep.config.seeds), sum(map(len, pairs))),
        "new_prompts": two_way_interval(scores) if len(scores) else (math.nan, math.nan),
    }


def unmatched_reason(sweep: SweepRuns, knob: str) -> str | None:
    """Return why the levels of a knob are not compared in matched pairs; None where arms have partners, complete or not."""
    if not any(len(arms) > 1 for arms in sweep.settings([knob])):
        return "no two settings agree in all other parameters"
    numbers = sum(map(is_number, sweep.levels(knob)))
    is_drawn = sweep.config.sampler != "grid" and numbers > MAX_LEVELS
    return f"the sampler drew {numbers} values of it, more than {MAX_LEVELS}" if is_drawn else None


def find_interactions(sweep: SweepRuns, outcome: str) -> tuple[Difference, ...]:
    """Return every interaction of two matched knobs for an outcome, adjusted over all of them."""
    knobs = [knob for knob in sweep.varied if not unmatched_reason(sweep, knob)]
    return as_family([one for knob, other in combinations(knobs, 2) for one in _of_knobs(sweep, outcome, knob, other)])


def simple_effects(sweep: SweepRuns, found: Difference) -> dict[Level, PairedEstimate]:
    """Return the effect of the interaction's knob, `second` minus `first`, at each level of the other one where it is known."""
    cells = cells_by_seed(sweep.settings([found.knob, found.other]), sweep.values[found.outcome])
    by_level = {level: matched(cells, [(found.first, level), (found.second, level)]) for level in sweep.levels(found.other)}
    return {level: paired(sweep, 0, pairs)["estimate"] for level, pairs in by_level.items() if pairs}


def _of_knobs(sweep: SweepRuns, outcome: str, knob: str, other: str) -> list[Difference]:
    settings, cells, of_prompts = _cells(sweep, [knob, other], outcome)
    scale = max((abs(value) for of_arm in sweep.values[outcome].values() for value in of_arm.values()), default=0.0)
    found = []
    for (first, second), (at_first, at_second) in product(*(combinations(sweep.levels(one), 2) for one in (knob, other))):
        four = [(level, at) for at in (at_first, at_second) for level in (first, second)]
        if known := [[_effects(figures) for figures in of_seed] for of_seed in matched(cells, four)]:
            found.append(
                Difference(
                    outcome=outcome,
                    knob=knob,
                    first=first,
                    second=second,
                    first_name=level_name(knob, first),
                    second_name=level_name(knob, second),
                    other=other,
                    at_first=at_first,
                    at_second=at_second,
                    most=2 * _most(sweep, outcome),
                    **paired(
                        sweep,
                        _shared(settings, four),
                        known,
                        [[_effects(one) for one in of_seed] for of_seed in matched(of_prompts, four)],
                        scale,
                    ),
                )
            )
    return found


def _most(sweep: SweepRuns, outcome: str) -> float:
    return 1.0 if sweep.is_share(outcome) else math.inf


def _effects(four: Sequence[Figure]) -> tuple[Figure, Figure]:
    """Return the effect of the knob at the first and at the second level of the other one."""
    low_first, low_second, high_first, high_second = four
    return low_second - low_first, high_second - high_first
