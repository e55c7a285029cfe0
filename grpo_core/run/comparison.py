"""Two records of the same step, figure by figure: a replayed step and a reproduced run must repeat all that can repeat.

Compared is what `metrics.py` calls deterministic, as the exact float: times and memory are left out. Of a run that repeats in
its statistics alone (`config/repeatability.py`) the means over its steps are compared instead.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from grpo_core.metrics import find_metric
from grpo_core.run.journal import Kind, Record

COMPARED: tuple[Kind, ...] = ("step", "ref_sync", "eval")
"""Kinds of records that hold figures."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far two figures may lie apart and count as the same: the larger of both bounds."""

    relative: float
    absolute: float

    def same(self, one: float | None, other: float | None) -> bool:
        """Return whether two figures count as the same; NaN equals NaN, a figure that is missing no other."""
        if one is None or other is None:
            return one is other
        return math.isclose(one, other, rel_tol=self.relative, abs_tol=self.absolute) or (math.isnan(one) and math.isnan(other))


EXACT = Tolerance(relative=0.0, absolute=0.0)
IN_OTHER_PASSES = Tolerance(relative=1e-4, absolute=1e-6)
"""Of the same step, computed in passes of another size, so that sums are taken in another order. Near 0 all may be rounding."""

STATISTICS = ("reward/mean", "kl/ref/drift", "kl/init/drift", "policy/entropy", "completion/tokens/mean")
"""Figures whose means over the steps are compared where tokens differ."""

WORDS = ("cause",)
"""What a `ref_sync` record holds beside figures."""
Identity = tuple[Kind, int, str]
"""Which record of a run it is: kind, step, and of evaluations the set."""


@dataclass(frozen=True, kw_only=True)
class FigureDifference:
    """One figure that two runs, or two attempts at one step, do not share."""

    step: int
    key: str
    before: float | None
    """None: there was no such figure."""
    now: float | None

    @property
    def size(self) -> float:
        """Absolute difference; infinite where one side is missing or not finite."""
        if self.before is None or self.now is None:
            return math.inf
        size = abs(self.now - self.before)
        return math.inf if math.isnan(size) else size

    def __str__(self) -> str:
        """Return `step 3: kl/ref/drift was 0.25, is 0.5 (by 0.25)`."""
        before, now = ("missing" if value is None else repr(value) for value in (self.before, self.now))
        size = f" (by {self.size:.3g})" if None not in (self.before, self.now) else ""
        return f"step {self.step}: {self.key} was {before}, is {now}{size}"


@dataclass(frozen=True, kw_only=True)
class MeanDifference:
    """One figure's mean over the steps that two runs share."""

    key: str
    before: float
    now: float
    standard_error: float
    """Of the mean of the differences, step by step; NaN for one step. Steps of a run depend on each other: a rough figure."""
    steps: int

    def __str__(self) -> str:
        """Return `reward/mean over 20 steps: 0.41 then, 0.43 now (difference 0.02, standard error 0.015)`."""
        size = f"difference {self.now - self.before:.3g}, standard error {self.standard_error:.2g}"
        return f"{self.key} over {self.steps} steps: {self.before:.4g} then, {self.now:.4g} now ({size})"


@dataclass(frozen=True, kw_only=True)
class JournalComparison:
    """What a run shares with the one that it repeats."""

    steps: int
    """Steps that both hold."""
    figures: int
    """Figures that were compared in all."""
    differences: tuple[FigureDifference, ...]
    """In the order of the journal, so that the first is the cause of the others or the nearest to it."""
    missing: tuple[Identity, ...]
    """Steps, syncs and evaluations of the earlier run that the later does not hold."""

    @property
    def is_identical(self) -> bool:
        """Whether every figure of every step was repeated."""
        return not self.differences and not self.missing


def identity(record: Record) -> Identity:
    """Return what a record must be compared with."""
    return record.kind, record.step, str(record.data.get("set", ""))


def figures(record: Record) -> dict[str, float]:
    """Return the figures of a record that a repetition must give again."""
    if record.kind == "ref_sync":
        return {f"ref_sync {key}": float(value) for key, value in record.data.items() if key not in WORDS}
    return {key: value for key, value in record.metrics.items() if _is_deterministic(key)}


def differences(
    before: Record, now: Record, unlike: Collection[str] = (), tolerance: Tolerance = EXACT
) -> list[FigureDifference]:
    """Return the figures in which two records of the same step differ, those in `unlike` left out; NaN equals NaN."""
    old, new = figures(before), figures(now)
    compared = [key for key in dict.fromkeys((*old, *new)) if key not in unlike]
    keys = [key for key in compared if not tolerance.same(old.get(key), new.get(key))]
    return [FigureDifference(step=now.step, key=key, before=old.get(key), now=new.get(key)) for key in keys]


def compare_journals(before: Sequence[Record], now: Sequence[Record], unlike: Collection[str] = ()) -> JournalComparison:
    """Compare two histories record by record.

    Args:
        before: of the run that is repeated, as `read_journal` gives it.
        now: of the repetition.
        unlike: figures that need not be the same.
    """
    shared = shared_records(before, now)
    held = {identity(old) for old, _ in shared}
    return JournalComparison(
        steps=sum(old.kind == "step" for old, _ in shared),
        figures=sum(len(figures(old).keys() - set(unlike)) for old, _ in shared),
        differences=tuple(difference for old, new in shared for difference in differences(old, new, unlike)),
        missing=tuple(key for key in _by_identity(before) if key not in held),
    )


def shared_records(before: Sequence[Record], now: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Return the records with figures that two histories both hold, in the order of the first one's journal."""
    old, new = _by_identity(before), _by_identity(now)
    return [(old[key], new[key]) for key in old if key in new]


def _by_identity(history: Sequence[Record]) -> dict[Identity, Record]:
    return {identity(record): record for record in history if record.kind in COMPARED}


def compare_means(before: Sequence[Record], now: Sequence[Record]) -> tuple[MeanDifference, ...]:
    """Compare the means of `STATISTICS` over the steps that two histories share, each where both have it."""
    old, new = ({record.step: record.metrics for record in run if record.kind == "step"} for run in (before, now))
    shared = [(old[step], new[step]) for step in old if step in new]
    pairs = {key: [(one[key], other[key]) for one, other in shared if key in one and key in other] for key in STATISTICS}
    return tuple(_mean_difference(key, found) for key, found in pairs.items() if found)


def _mean_difference(key: str, pairs: Sequence[tuple[float, float]]) -> MeanDifference:
    changes = [now - before for before, now in pairs]
    return MeanDifference(
        key=key,
        before=fmean(before for before, _ in pairs),
        now=fmean(now for _, now in pairs),
        standard_error=stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else math.nan,
        steps=len(pairs),
    )


def _is_deterministic(key: str) -> bool:
    metric = find_metric(key)
    return metric is None or metric.deterministic
