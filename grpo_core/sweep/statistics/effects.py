"""Effects of knobs and differences between arms, each paired within seeds; association for knobs that were sampled.

A contrast of two levels of a knob uses matched pairs only: within a seed, arms that agree in every other knob and have both
levels complete. Their differences are averaged within the seed, and the seeds are the sample. Arms that lack a partner do not
enter, so that a pruned or failed run takes its partner with it and not the fairness of the comparison.

A knob has no contrasts where no two arms agree in all other knobs, or where a sampler drew more than 8 numbers for it. Then its
effect is an association over sampled arms: Spearman's rank correlation between the knob and the arms' means.

Claims are Holm-adjusted within a family: all statements about knobs (contrasts and correlations together) for one outcome, all
interactions for one outcome (`interactions.py`), and all pairs of arms.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TypedDict, TypeVar

from grpo_core.sweep.display import level_name
from grpo_core.sweep.statistics.paired import (
    ALPHA,
    ROUNDING,
    PairedEstimate,
    RankCorrelation,
    holm,
    paired_estimate,
    rank_correlation,
    t_interval,
)
from grpo_core.sweep.statistics.runs import (
    Level,
    Levels,
    Settings,
    SweepRuns,
    Values,
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
    p: float
    """The p-value by itself: of the paired t test, or of permutations; NaN where nothing is tested."""
    family_p: float
    """The p-value that enters Holm's correction: as `p`, but of the sign test where every seed shows the same difference."""
    holm_p: float = math.nan
    """After Holm's correction in its family; NaN where nothing is tested."""
    family_size: int = 1
    """Statements of the family that are tested."""

    @property
    def is_claim(self) -> bool:
        """Whether it stands after Holm's correction."""
        return self.holm_p <= ALPHA

    @property
    def is_alone(self) -> bool:
        """Whether it would stand by itself although it does not after the correction: neither a result nor nothing."""
        return not self.is_claim and self.p <= ALPHA


AnyStatement = TypeVar("AnyStatement", bound=Statement)


@dataclass(frozen=True, kw_only=True)
class Difference(Statement):
    """A paired difference of an outcome."""

    first: Level
    second: Level
    differences: tuple[float, ...]
    """One per seed."""
    estimate: PairedEstimate
    pairs: int
    """Pairs of runs, or sets of four, that entered."""
    planned_pairs: int
    """Those that would have entered had every run been complete."""

    @property
    def is_alone(self) -> bool:
        """Whether its own interval excludes 0 although it does not stand after the correction."""
        return not self.is_claim and self.estimate.excludes_zero

    @cached_property
    def together(self) -> tuple[float, float]:
        """Bonferroni interval, which holds with those of the whole family at once."""
        if self.estimate.spread == "varies":
            return t_interval(self.differences, comparisons=self.family_size)
        # Two seeds that agree to the last digit bound nothing, unless they agree on 0.
        return (0.0, 0.0) if self.estimate.spread == "identical" else (math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class Comparison(Difference):
    """Two levels of a knob, or two arms: `second` minus `first`."""

    knob: str | None
    """None: two arms, `first` and `second` are their numbers."""
    first_name: str
    second_name: str

    @property
    def name(self) -> str:
        """Both, as a table of levels has them: `0.1 − 0.04`."""  # noqa: RUF002 - a minus between two numbers
        return f"{self.second_name} − {self.first_name}"  # noqa: RUF001


@dataclass(frozen=True, kw_only=True)
class Association(Statement):
    """A sampled knob and an outcome over arm means."""

    knob: str
    correlation: RankCorrelation
    left_out: int
    """Arms whose level is not a number: null, except a sync period that is never, which ranks as the longest."""
    reason: str
    """Why levels are not compared in matched pairs, in words."""


@dataclass(frozen=True, kw_only=True)
class KnobEffects:
    """All statements about knobs for one outcome: one family."""

    outcome: str
    contrasts: tuple[Comparison, ...]
    associations: tuple[Association, ...]

    def of(self, knob: str) -> list[Comparison]:
        """Return the contrasts of one knob."""
        return [contrast for contrast in self.contrasts if contrast.knob == knob]

    def association(self, knob: str) -> Association | None:
        """Return the association of a sampled knob; None for a knob with contrasts or one level."""
        return next((found for found in self.associations if found.knob == knob), None)


def knob_effects(sweep: SweepRuns, outcome: str = "objective") -> KnobEffects:
    """Return the effect of every knob on an outcome, adjusted over all of them."""
    values = sweep.values(outcome)
    found: list[Comparison | Association] = []
    for knob in sweep.varied:
        reason = unmatched_reason(sweep, knob)
        found += [_association(sweep, knob, outcome, values, reason)] if reason else _contrasts(sweep, knob, outcome, values)
    adjusted = as_family(found)
    return KnobEffects(
        outcome=outcome,
        contrasts=tuple(one for one in adjusted if isinstance(one, Comparison)),
        associations=tuple(one for one in adjusted if isinstance(one, Association)),
    )


def arm_differences(sweep: SweepRuns, outcome: str = "objective") -> tuple[Comparison, ...]:
    """Return every pair of arms that share a complete seed, the later arm minus the earlier, adjusted over all pairs."""
    values = sweep.values(outcome)
    shared = (
        (first, second, sorted(values[first.number].keys() & values[second.number].keys()))
        for first, second in combinations(sweep.arms, 2)
    )
    return as_family(
        [
            Comparison(
                knob=None,
                outcome=outcome,
                first=first.number,
                second=second.number,
                first_name=first.name,
                second_name=second.name,
                planned_pairs=max(len(sweep.facts.seeds), len(seeds)),
                **paired([[(values[first.number][seed], values[second.number][seed])] for seed in seeds]),
            )
            for first, second, seeds in shared
            if seeds
        ]
    )


def as_family(found: Sequence[AnyStatement]) -> tuple[AnyStatement, ...]:
    """Return statements with the p-values and intervals that they have as one family."""
    adjusted = holm([one.family_p for one in found])
    size = sum(not math.isnan(p) for p in adjusted)
    return tuple(replace(one, holm_p=p, family_size=size) for one, p in zip(found, adjusted, strict=True))


def mean_and_half_width(values: Iterable[float]) -> tuple[float, float]:
    """Return the mean over seeds and half of its 95 % interval (Student's), what ± is in all of a report; NaN where unknown."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) > 1 and max(known) - min(known) <= ROUNDING * max(map(abs, known)):
        return mean(known), 0.0
    low, high = t_interval(known)
    return mean(known), (high - low) / 2


def _contrasts(sweep: SweepRuns, knob: str, outcome: str, values: Values) -> list[Comparison]:
    settings = sweep.settings([knob])
    cells = cells_by_seed(settings, values)
    found = ((first, second, matched(cells, [(first,), (second,)])) for first, second in combinations(sweep.levels(knob), 2))
    return [
        Comparison(
            knob=knob,
            outcome=outcome,
            first=first,
            second=second,
            first_name=level_name(knob, first),
            second_name=level_name(knob, second),
            planned_pairs=planned_pairs(sweep, settings, [(first,), (second,)], pairs),
            **paired(pairs),
        )
        for first, second, pairs in found
        if pairs
    ]


def planned_pairs(sweep: SweepRuns, settings: Settings, keys: Sequence[Levels], pairs: Sequence[Sequence[object]]) -> int:
    """Return how many pairs of some cells would enter were every run complete; never fewer than those that do."""
    shared = sum(all(key in setting for key in keys) for setting in settings)
    return max(shared * len(sweep.facts.seeds), sum(map(len, pairs)))


def _association(sweep: SweepRuns, knob: str, outcome: str, values: Values, reason: str) -> Association:
    points = arm_points(sweep, knob, values)
    # A reference that never syncs has the longest period; ranks need no more than that.
    longest = math.inf if knob == "reference.sync_steps" else None
    ranked = [(longest if level is None else level, mean) for level, mean in points]
    numbers = [(float(level), mean) for level, mean in ranked if is_number(level) or level == math.inf]
    correlation = rank_correlation([x for x, _ in numbers], [y for _, y in numbers])
    return Association(
        knob=knob,
        outcome=outcome,
        p=correlation.p,
        family_p=correlation.p,
        correlation=correlation,
        left_out=len(points) - len(numbers),
        reason=reason,
    )


def arm_points(sweep: SweepRuns, knob: str, values: Values) -> list[tuple[Level, float]]:
    """Return (level, mean over seeds) of every arm with a complete run."""
    return [(arm.values[knob], mean(values[arm.number].values())) for arm in sweep.arms if values[arm.number]]


class _Paired(TypedDict):
    differences: tuple[float, ...]
    estimate: PairedEstimate
    p: float
    family_p: float
    pairs: int


def paired(pairs: Sequence[Sequence[tuple[float, ...]]], scale: float | None = None) -> _Paired:
    """Return the differences of matched pairs, averaged within each seed, and what they show together.

    Args:
        pairs: for each seed, (first, second) figures.
        scale: size of the figures that rounding is measured against; of the pairs themselves if left out.
    """
    differences = tuple(mean(second - first for first, second in of_seed) for of_seed in pairs)
    largest = max(abs(value) for of_seed in pairs for pair in of_seed for value in pair)
    estimate = paired_estimate(differences, scale=largest if scale is None else scale)
    return {
        "differences": differences,
        "estimate": estimate,
        "p": estimate.p,
        "family_p": estimate.family_p,
        "pairs": sum(map(len, pairs)),
    }


def unmatched_reason(sweep: SweepRuns, knob: str) -> str | None:
    """Return why the levels of a knob are not compared in matched pairs; None where arms have partners, complete or not."""
    if not any(len(arms) > 1 for arms in sweep.settings([knob])):
        return "no two arms agree in all other knobs"
    numbers = sum(is_number(level) for level in sweep.levels(knob))
    if sweep.facts.sampler != "grid" and numbers > MAX_LEVELS:
        return f"the sampler drew {numbers} values of it, more than {MAX_LEVELS}"
    return None
