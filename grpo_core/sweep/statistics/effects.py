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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypedDict, TypeVar

from grpo_core.sweep.statistics.balanced import Values, cell_means, mean
from grpo_core.sweep.statistics.facts import Level, is_number, level_name
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
from grpo_core.sweep.statistics.runs import SweepRuns

MAX_LEVELS = 8
"""A knob with more numeric levels than this is treated as continuous where a sampler drew them; a grid's levels were chosen."""
OUTCOMES = ("objective", "accuracy", "reward", "kl_init_seq", "probe_kl_init", "zero_std_frac", "train_seconds")
"""What effects.parquet says of each knob; the objective is the question, the rest explains it."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A paired difference of an outcome, and what is left of it in its family."""

    outcome: str
    first: Level
    second: Level
    differences: tuple[float, ...]
    """One per seed."""
    estimate: PairedEstimate
    pairs: int
    """Pairs of runs, or sets of four, that entered."""
    planned_pairs: int
    """Those that would have entered had every run been complete."""
    holm_p: float = math.nan
    together_low: float = math.nan
    """Bonferroni interval, which holds with those of the whole family at once."""
    together_high: float = math.nan

    @property
    def is_claim(self) -> bool:
        """Whether it stands after Holm's correction."""
        return self.holm_p <= ALPHA

    @property
    def is_alone(self) -> bool:
        """Whether its own interval excludes 0 although it does not stand after the correction: neither a result nor nothing."""
        return not self.is_claim and self.estimate.excludes_zero


OneDifference = TypeVar("OneDifference", bound=Difference)


@dataclass(frozen=True, kw_only=True)
class Comparison(Difference):
    """Two levels of a knob, or two arms: `second` minus `first`."""

    knob: str | None
    """None: two arms, `first` and `second` are their numbers."""
    first_name: str
    second_name: str


@dataclass(frozen=True, kw_only=True)
class Association:
    """A sampled knob and an outcome over arm means."""

    knob: str
    outcome: str
    correlation: RankCorrelation
    left_out: int
    """Arms whose level is not a number: null, except a sync period that is never, which ranks as the longest."""
    reason: str
    """Why levels are not compared in matched pairs, in words."""
    holm_p: float = math.nan

    @property
    def is_claim(self) -> bool:
        """Whether the correlation stands after Holm's correction."""
        return self.holm_p <= ALPHA

    @property
    def is_alone(self) -> bool:
        """Whether its own p-value is small although it does not stand after the correction."""
        return not self.is_claim and self.correlation.p <= ALPHA


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
    contrasts: list[Comparison] = []
    associations: list[Association] = []
    for knob in sweep.facts.knobs:
        levels = sweep.levels(knob)
        if len(levels) < 2:
            continue
        if reason := unmatched_reason(sweep, knob):
            associations.append(_association(sweep, knob, outcome, values, reason))
        else:
            contrasts += _contrasts(sweep, knob, outcome, values)
    adjusted = holm([*(found.estimate.family_p for found in contrasts), *(found.correlation.p for found in associations)])
    size = sum(not math.isnan(p) for p in adjusted)
    of_contrasts, of_associations = adjusted[: len(contrasts)], adjusted[len(contrasts) :]
    return KnobEffects(
        outcome=outcome,
        contrasts=tuple(in_family(found, p, size) for found, p in zip(contrasts, of_contrasts, strict=True)),
        associations=tuple(replace(found, holm_p=p) for found, p in zip(associations, of_associations, strict=True)),
    )


def arm_differences(sweep: SweepRuns, outcome: str = "objective") -> tuple[Comparison, ...]:
    """Return every pair of arms that share a complete seed, the later arm minus the earlier, adjusted over all pairs."""
    values = sweep.values(outcome)
    found = []
    for first, second in combinations(sweep.arms, 2):
        seeds = sorted(values[first.number].keys() & values[second.number].keys())
        if seeds:
            pairs = [[(values[first.number][seed], values[second.number][seed])] for seed in seeds]
            found.append(
                Comparison(
                    knob=None,
                    outcome=outcome,
                    first=first.number,
                    second=second.number,
                    first_name=first.name,
                    second_name=second.name,
                    planned_pairs=max(len(sweep.facts.seeds), len(seeds)),
                    **paired(pairs),
                )
            )
    adjusted = holm([comparison.estimate.family_p for comparison in found])
    size = sum(not math.isnan(p) for p in adjusted)
    return tuple(in_family(comparison, p, size) for comparison, p in zip(found, adjusted, strict=True))


def mean_and_half_width(values: Iterable[float]) -> tuple[float, float]:
    """Return the mean over seeds and half of its 95 % interval (Student's), what ± is in all of a report; NaN where unknown."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) > 1 and max(known) - min(known) <= ROUNDING * max(map(abs, known)):
        return mean(known), 0.0
    low, high = t_interval(known)
    return mean(known), (high - low) / 2


class _Paired(TypedDict):
    differences: tuple[float, ...]
    estimate: PairedEstimate
    pairs: int


_Pairs = Sequence[Sequence[tuple[float, float]]]
Cells = Mapping[Level, Sequence[int]]
"""Level of a knob -> arms, at one setting of the other knobs."""
_Combinations = dict[tuple[Level, ...], dict[Level, list[int]]]


def _contrasts(sweep: SweepRuns, knob: str, outcome: str, values: dict[int, dict[int, float]]) -> list[Comparison]:
    combos, found = list(_combinations(sweep, knob).values()), []
    for first, second in combinations(sweep.levels(knob), 2):
        shared = [arms for arms in combos if first in arms and second in arms]
        if pairs := matched_pairs(shared, values, first, second):
            found.append(
                Comparison(
                    knob=knob,
                    outcome=outcome,
                    first=first,
                    second=second,
                    first_name=level_name(knob, first),
                    second_name=level_name(knob, second),
                    planned_pairs=max(len(shared) * len(sweep.facts.seeds), sum(map(len, pairs))),
                    **paired(pairs),
                )
            )
    return found


def matched_pairs(settings: Iterable[Cells], values: Values, first: Level, second: Level) -> list[list[tuple[float, float]]]:
    """Return, for each seed with any, the (first, second) figures of the settings of the other knobs that hold both levels.

    Args:
        settings: for each setting of the other knobs, level -> arms.
        values: arm -> seed -> figure.
        first: a level.
        second: the level that it is compared with.
    """
    shared = list(settings)
    seeds = sorted({seed for arms in shared for number in arms.get(first, ()) for seed in values[number]})
    cells = [[cell_means(arms, values, seed) for arms in shared] for seed in seeds]
    pairs = [[(cell[first], cell[second]) for cell in of_seed if first in cell and second in cell] for of_seed in cells]
    return [of_seed for of_seed in pairs if of_seed]


def _association(sweep: SweepRuns, knob: str, outcome: str, values: dict[int, dict[int, float]], reason: str) -> Association:
    points = arm_points(sweep, knob, values)
    # A reference that never syncs has the longest period; ranks need no more than that.
    longest = math.inf if knob == "reference.sync_steps" else None
    ranked = [(longest if level is None else level, mean) for level, mean in points]
    numbers = [(float(level), mean) for level, mean in ranked if is_number(level) or level == math.inf]
    correlation = rank_correlation([x for x, _ in numbers], [y for _, y in numbers])
    left_out = len(points) - len(numbers)
    return Association(knob=knob, outcome=outcome, correlation=correlation, left_out=left_out, reason=reason)


def arm_points(sweep: SweepRuns, knob: str, values: dict[int, dict[int, float]]) -> list[tuple[Level, float]]:
    """Return (level, mean over seeds) of every arm with a complete run."""
    index = sweep.facts.knobs.index(knob)
    return [(arm.levels[index], mean(values[arm.number].values())) for arm in sweep.arms if values[arm.number]]


def paired(pairs: _Pairs, scale: float | None = None) -> _Paired:
    """Return the differences of matched pairs, averaged within each seed, and what they say together.

    Args:
        pairs: for each seed, (first, second) figures.
        scale: size of the figures that rounding is measured against; of the pairs themselves if left out.
    """
    differences = tuple(mean(second - first for first, second in of_seed) for of_seed in pairs)
    largest = max(abs(value) for of_seed in pairs for pair in of_seed for value in pair)
    return {
        "differences": differences,
        "estimate": paired_estimate(differences, scale=largest if scale is None else scale),
        "pairs": sum(map(len, pairs)),
    }


def in_family(found: OneDifference, p: float, size: int) -> OneDifference:
    """Return a difference with its p value and interval in a family of so many.

    Args:
        found: the difference.
        p: after Holm's correction.
        size: of the family.
    """
    low, high = _together(found.differences, found.estimate, size)
    return replace(found, holm_p=p, together_low=low, together_high=high)


def _together(differences: Sequence[float], estimate: PairedEstimate, size: int) -> tuple[float, float]:
    """Return the Bonferroni interval of a difference in a family of so many."""
    if estimate.spread != "varies":
        # Two seeds that agree to the last digit bound nothing, unless they agree on 0.
        bound = 0.0 if estimate.spread == "identical" else math.nan
        return bound, bound
    return t_interval(differences, comparisons=size)


def _combinations(sweep: SweepRuns, knob: str) -> _Combinations:
    """Return, for each setting of the other knobs, level -> arms; more than one where a sampler drew the same arm twice."""
    index = sweep.facts.knobs.index(knob)
    return _grouped((arm.levels[:index] + arm.levels[index + 1 :], arm.levels[index], arm.number) for arm in sweep.arms)


def _grouped(items: Iterable[tuple[tuple[Level, ...], Level, int]]) -> _Combinations:
    found: _Combinations = {}
    for combo, level, arm in items:
        found.setdefault(combo, {}).setdefault(level, []).append(arm)
    return found


def unmatched_reason(sweep: SweepRuns, knob: str) -> str | None:
    """Return why the levels of a knob are not compared in matched pairs; None where arms have partners, complete or not."""
    if not any(len(arms) > 1 for arms in _combinations(sweep, knob).values()):
        return "no two arms agree in all other knobs"
    numbers = sum(is_number(level) for level in sweep.levels(knob))
    if sweep.facts.sampler != "grid" and numbers > MAX_LEVELS:
        return f"the sampler drew {numbers} values of it, more than {MAX_LEVELS}"
    return None
