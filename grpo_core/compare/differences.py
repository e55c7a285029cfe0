"""Where the histories of two runs part: the first figure of the first step that is not the same in both."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.compare.runs import ComparedRun
from grpo_core.run.comparison import COMPARED, FigureDifference, differences, identity
from grpo_core.run.journal import Record

OF_COMPLETIONS = ("reward/mean", "completion/tokens/mean", "completion/tokens/max")
"""Figures that depend on the completions alone: once one differs, the runs have sampled other tokens."""


@dataclass(frozen=True, kw_only=True)
class RunDifference:
    """Since when a run differs from the first one of the comparison."""

    label: str
    against: str
    """What the first run is called."""
    shared_steps: int
    """Steps that both runs have finished."""
    first: FigureDifference | None
    """`before` is the first run's value, `now` this run's; None where every figure that both hold is the same."""
    first_completions: FigureDifference | None
    """The first figure of completions that differs: from there on the runs have sampled other tokens."""


def first_differences(runs: Sequence[ComparedRun]) -> tuple[RunDifference, ...]:
    """Compare each run with the first one, figure by figure in the order of the journal; times and memory are left out."""
    first, *others = runs
    return tuple(_difference(first, other) for other in others)


def _difference(first: ComparedRun, other: ComparedRun) -> RunDifference:
    old, new = (_by_identity(compared.run.records) for compared in (first, other))
    shared = [key for key in old if key in new]
    found: list[FigureDifference] = []
    for key in shared:
        found += [one for one in differences(old[key], new[key]) if one.before is not None and one.now is not None]
        if any(one.key in OF_COMPLETIONS for one in found):
            break
    return RunDifference(
        label=other.label,
        against=first.label,
        shared_steps=sum(kind == "step" for kind, _, _ in shared),
        first=next(iter(found), None),
        first_completions=next((one for one in found if one.key in OF_COMPLETIONS), None),
    )


def _by_identity(records: Sequence[Record]) -> dict[tuple[str, int, str], Record]:
    return {identity(record): record for record in records if record.kind in COMPARED}
