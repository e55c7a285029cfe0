"""Two records of the same step, figure by figure: a replayed step and a reproduced run must repeat all that can repeat.

Compared is what `metrics.py` calls deterministic, as the exact float: times and memory are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.metrics import find_metric
from grpo_core.run.journal import Kind, Record

COMPARED: tuple[Kind, ...] = ("step", "ref_sync", "eval")
"""Kinds of records that hold figures."""

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
        """Return `step 3: kl/ref/k3 was 0.25, is 0.5 (by 0.25)`."""
        before, now = ("missing" if value is None else repr(value) for value in (self.before, self.now))
        size = f" (by {self.size:.3g})" if None not in (self.before, self.now) else ""
        return f"step {self.step}: {self.key} was {before}, is {now}{size}"


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
        return {f"ref_sync {key}": float(value) for key, value in record.data.items() if key != "repaired"}
    return {key: value for key, value in record.metrics.items() if _is_deterministic(key)}


def differences(before: Record, now: Record) -> list[FigureDifference]:
    """Return the figures in which two records of the same step differ; NaN equals NaN."""
    old, new = figures(before), figures(now)
    keys = [key for key in dict.fromkeys((*old, *new)) if not _same(old.get(key), new.get(key))]
    return [FigureDifference(step=now.step, key=key, before=old.get(key), now=new.get(key)) for key in keys]


def compare_journals(before: Sequence[Record], now: Sequence[Record]) -> JournalComparison:
    """Compare two histories record by record.

    Args:
        before: of the run that is repeated, as `read_journal` gives it.
        now: of the repetition.
    """
    old, new = ({identity(record): record for record in run if record.kind in COMPARED} for run in (before, now))
    shared = [key for key in old if key in new]
    return JournalComparison(
        steps=sum(kind == "step" for kind, _, _ in shared),
        figures=sum(len(figures(old[key])) for key in shared),
        differences=tuple(difference for key in shared for difference in differences(old[key], new[key])),
        missing=tuple(key for key in old if key not in new),
    )


def _is_deterministic(key: str) -> bool:
    metric = find_metric(key)
    return metric is None or metric.deterministic


def _same(one: float | None, other: float | None) -> bool:
    return one == other or (one != one and other != other)  # noqa: PLR0124  (NaN)
