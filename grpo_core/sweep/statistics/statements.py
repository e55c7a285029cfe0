"""What is said of an outcome and tested, and which p-value decides whether it is claimed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from grpo_core.sweep.statistics.paired import (
    ALPHA,
    MODERATED_FROM,
    PairedEstimate,
    RankCorrelation,
    holm,
    moderated_p,
    t_interval,
)
from grpo_core.sweep.statistics.runs import Level


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Something about an outcome that is tested, in a family of such statements."""

    outcome: str
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

    @property
    def is_significant_uncorrected(self) -> bool:
        """Whether it would stand by itself although it does not after the correction: neither a result nor nothing."""
        return not self.is_claim and self.p <= ALPHA


AnyStatement = TypeVar("AnyStatement", bound=Statement)


@dataclass(frozen=True, kw_only=True)
class Difference(Statement):
    """A paired difference of an outcome."""

    first: Level
    second: Level
    differences: tuple[float, ...]
    estimate: PairedEstimate
    pairs: int
    """Pairs of runs, or sets of four, that entered."""
    planned_pairs: int
    """Those that would have entered had every run been complete."""
    new_prompts: tuple[float, float]
    """95 % interval for other seeds and other prompts; NaN where no figures by prompt are known."""

    @property
    def is_claim(self) -> bool:
        """Whether it stands after Holm's correction, all planned runs being in, and its own interval excludes 0."""
        return super().is_claim and self.estimate.excludes_zero

    @property
    def is_significant_uncorrected(self) -> bool:
        """Whether its own interval excludes 0 although it does not stand after the correction."""
        return not self.is_claim and self.estimate.excludes_zero

    @cached_property
    def simultaneous_interval(self) -> tuple[float, float]:
        """Bonferroni interval at its share of the family's 5 %, which holds with those of the whole family at once."""
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
