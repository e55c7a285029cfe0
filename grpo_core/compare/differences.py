"""Where the histories of two runs part: the first figure of the first step that is not the same in both."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.compare.runs import ComparedRun
from grpo_core.run.comparison import FigureDifference, differences, shared_records

LENGTHS = ("completion/tokens/mean", "completion/tokens/max")
"""Figures that depend on the completions alone: once one differs, the runs have sampled other tokens."""
REWARD = "reward/mean"
"""Depends on the completions, and on `rewards`."""


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
    of_completions, found = _of_completions(first, other), list[FigureDifference]()
    shared = shared_records(first.run.records, other.run.records)
    for old, new in shared:
        found += [one for one in differences(old, new) if one.before is not None and one.now is not None]
        if any(one.key in of_completions for one in found):
            break
    return RunDifference(
        label=other.label,
        against=first.label,
        shared_steps=sum(old.kind == "step" for old, _ in shared),
        first=next(iter(found), None),
        first_completions=next((one for one in found if one.key in of_completions), None),
    )


def _of_completions(first: ComparedRun, other: ComparedRun) -> tuple[str, ...]:
    """Return the figures by which the completions of two runs are compared.

    The reward is one of them where both runs have the same `rewards`: others give the same completions another score.
    """
    return (*LENGTHS, REWARD) if first.run.config.rewards == other.run.config.rewards else LENGTHS
