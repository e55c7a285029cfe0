"""Effects of knobs and differences between arms, each paired within seeds; association for knobs that were sampled.

A contrast of two levels of a knob uses matched pairs only: within a seed, arms that agree in every other knob and have both
levels complete. Their differences are averaged within the seed, and the seeds are the sample. Arms that lack a partner do not
enter, so that a pruned or failed run takes its partner with it and not the fairness of the comparison.

A knob has no contrasts where no two arms agree in all other knobs, or where a sampler drew more than 8 numbers for it. Then its
effect is an association over sampled arms: Spearman's rank correlation between the knob and the arms' means.

Claims are Holm-adjusted within a family: all statements about knobs (contrasts and correlations together) for one outcome, and
all pairs of arms.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypedDict

import pandas

from grpo_core.analysis.sweep.balanced import cell_means, mean
from grpo_core.analysis.sweep.facts import Level, is_number, level_name
from grpo_core.analysis.sweep.runs import SweepRuns
from grpo_core.analysis.sweep.statistics import (
    ALPHA,
    PairedEstimate,
    RankCorrelation,
    holm,
    paired_estimate,
    rank_correlation,
    standard_error,
    t_interval,
)

MAX_LEVELS = 8
"""A knob with more numeric levels than this is treated as continuous where a sampler drew them; a grid's levels were chosen."""
OUTCOMES = ("objective", "accuracy", "reward", "kl_init_seq", "probe_kl_init", "zero_std_frac", "train_seconds")
"""What effects.parquet says of each knob; the objective is the question, the rest explains it."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two levels of a knob, or two arms: `second` minus `first`."""

    knob: str | None
    """None: two arms, `first` and `second` are their numbers."""
    outcome: str
    first: Level
    second: Level
    first_name: str
    second_name: str
    differences: tuple[float, ...]
    """One per seed."""
    estimate: PairedEstimate
    pairs: int
    """Pairs of runs that entered."""
    planned_pairs: int
    """Pairs of runs that would have entered had every run been complete."""
    holm_p: float = math.nan
    together_low: float = math.nan
    """Bonferroni interval, which holds with those of the whole family at once."""
    together_high: float = math.nan

    @property
    def is_claim(self) -> bool:
        """Whether the difference stands after Holm's correction."""
        return self.holm_p <= ALPHA


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
        if reason := _unmatched(sweep, knob):
            associations.append(_association(sweep, knob, outcome, values, reason))
        else:
            contrasts += _contrasts(sweep, knob, outcome, values)
    adjusted = holm([*(found.estimate.family_p for found in contrasts), *(found.correlation.p for found in associations)])
    size = sum(not math.isnan(p) for p in adjusted)
    of_contrasts, of_associations = adjusted[: len(contrasts)], adjusted[len(contrasts) :]
    return KnobEffects(
        outcome=outcome,
        contrasts=tuple(_adjusted(found, p, size) for found, p in zip(contrasts, of_contrasts, strict=True)),
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
                    **_paired(pairs),
                )
            )
    adjusted = holm([comparison.estimate.family_p for comparison in found])
    size = sum(not math.isnan(p) for p in adjusted)
    return tuple(_adjusted(comparison, p, size) for comparison, p in zip(found, adjusted, strict=True))


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """Return the mean over seeds and its standard error; NaN where unknown."""
    known = [value for value in values if math.isfinite(value)]
    return (mean(known), standard_error(known)) if known else (math.nan, math.nan)


def effects_table(families: Sequence[KnobEffects]) -> pandas.DataFrame:
    """Return contrasts and associations as one table, a row each."""
    rows = [
        {
            "kind": "contrast",
            "outcome": found.outcome,
            "knob": found.knob,
            "level_a": found.first_name,
            "level_b": found.second_name,
        }
        | _figures(found)
        for family in families
        for found in family.contrasts
    ]
    rows += [
        {
            "kind": "association",
            "outcome": found.outcome,
            "knob": found.knob,
            "rho": found.correlation.rho,
            "arms": found.correlation.count,
            "p": found.correlation.p,
            "holm_p": found.holm_p,
        }
        for family in families
        for found in family.associations
    ]
    columns = ["kind", "outcome", "knob", "level_a", "level_b", *FIGURES, "rho", "arms"]
    return _typed(pandas.DataFrame(rows, columns=columns))


def differences_table(comparisons: Sequence[Comparison]) -> pandas.DataFrame:
    """Return the differences between arms as a table, a row a pair."""
    rows = [
        {
            "outcome": found.outcome,
            "arm_a": found.first,
            "arm_b": found.second,
            "setting_a": found.first_name,
            "setting_b": found.second_name,
        }
        | _figures(found)
        for found in comparisons
    ]
    return _typed(pandas.DataFrame(rows, columns=["outcome", "arm_a", "arm_b", "setting_a", "setting_b", *FIGURES]))


FIGURES = (
    "difference",
    "low",
    "high",
    "together_low",
    "together_high",
    "p",
    "holm_p",
    "seeds",
    "pairs",
    "planned_pairs",
    "spread",
    "method",
)
"""Columns of a comparison: b minus a; the unadjusted 95 % interval, the Bonferroni one, and so on."""
TEXT_COLUMNS = ("kind", "outcome", "knob", "level_a", "level_b", "setting_a", "setting_b", "spread", "method")


def _figures(found: Comparison) -> dict[str, object]:
    estimate = found.estimate
    numbers = (estimate.mean, estimate.low, estimate.high, found.together_low, found.together_high, estimate.p, found.holm_p)
    counts = (estimate.seeds, found.pairs, found.planned_pairs)
    return dict(zip(FIGURES, (*numbers, *counts, estimate.spread, estimate.method), strict=True))


def _typed(table: pandas.DataFrame) -> pandas.DataFrame:
    """Give every column its type also where no row says it: a reader of Parquet must find the same schema in every sweep."""
    counts = ("arm_a", "arm_b", "seeds", "pairs", "planned_pairs", "arms")
    types = {name: "string" if name in TEXT_COLUMNS else "Int64" if name in counts else "float64" for name in table}
    return table.astype(types)


class _Paired(TypedDict):
    differences: tuple[float, ...]
    estimate: PairedEstimate
    pairs: int


_Pairs = Sequence[Sequence[tuple[float, float]]]
_Combinations = dict[tuple[Level, ...], dict[Level, list[int]]]


def _contrasts(sweep: SweepRuns, knob: str, outcome: str, values: dict[int, dict[int, float]]) -> list[Comparison]:
    combos = list(_combinations(sweep, knob).values())
    found = []
    for first, second in combinations(sweep.levels(knob), 2):
        shared = [arms for arms in combos if first in arms and second in arms]
        seeds = sorted({seed for arms in shared for number in arms[first] for seed in values[number]})
        cells = [[cell_means(arms, values, seed) for arms in shared] for seed in seeds]
        pairs = [[(cell[first], cell[second]) for cell in of_seed if first in cell and second in cell] for of_seed in cells]
        pairs = [of_seed for of_seed in pairs if of_seed]
        if pairs:
            found.append(
                Comparison(
                    knob=knob,
                    outcome=outcome,
                    first=first,
                    second=second,
                    first_name=level_name(knob, first),
                    second_name=level_name(knob, second),
                    planned_pairs=max(len(shared) * len(sweep.facts.seeds), sum(map(len, pairs))),
                    **_paired(pairs),
                )
            )
    return found


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


def _paired(pairs: _Pairs) -> _Paired:
    differences = tuple(mean(second - first for first, second in of_seed) for of_seed in pairs)
    scale = max(abs(value) for of_seed in pairs for pair in of_seed for value in pair)
    return {
        "differences": differences,
        "estimate": paired_estimate(differences, scale=scale),
        "pairs": sum(map(len, pairs)),
    }


def _adjusted(found: Comparison, p: float, size: int) -> Comparison:
    if found.estimate.spread != "varies":
        # Two seeds that agree to the last digit bound nothing, unless they agree on 0.
        bound = 0.0 if found.estimate.spread == "identical" else math.nan
        return replace(found, holm_p=p, together_low=bound, together_high=bound)
    low, high = t_interval(found.differences, comparisons=size)
    return replace(found, holm_p=p, together_low=low, together_high=high)


def _combinations(sweep: SweepRuns, knob: str) -> _Combinations:
    """Return, for each setting of the other knobs, level -> arms; more than one where a sampler drew the same arm twice."""
    index = sweep.facts.knobs.index(knob)
    return _grouped((arm.levels[:index] + arm.levels[index + 1 :], arm.levels[index], arm.number) for arm in sweep.arms)


def _grouped(items: Iterable[tuple[tuple[Level, ...], Level, int]]) -> _Combinations:
    found: _Combinations = {}
    for combo, level, arm in items:
        found.setdefault(combo, {}).setdefault(level, []).append(arm)
    return found


def _unmatched(sweep: SweepRuns, knob: str) -> str | None:
    """Return why the levels of a knob are not compared in matched pairs; None where arms have partners, complete or not."""
    if not any(len(arms) > 1 for arms in _combinations(sweep, knob).values()):
        return "no two arms agree in all other knobs"
    numbers = sum(is_number(level) for level in sweep.levels(knob))
    if sweep.facts.sampler != "grid" and numbers > MAX_LEVELS:
        return f"the sampler drew {numbers} values of it, more than {MAX_LEVELS}"
    return None
