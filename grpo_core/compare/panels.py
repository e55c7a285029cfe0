"""What the pictures and the page draw, panel by panel, and where syncs of several runs are marked."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grpo_core.compare.differences import ACCURACY
from grpo_core.run.curves import CURVE_KINDS, FORGETTING


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One diagram."""

    title: str
    unit: str
    line: str
    """The metric whose line is drawn."""
    points: str | None = None
    """The metric that is drawn as squares with bars: evaluations before and after training."""
    smooth: bool = False
    """Whether the line is the mean of the last five steps, over a thin one of each step."""
    is_kl: bool = False


def _panel(key: str, *, smooth: bool = False, points: str | None = None) -> Panel:
    kind = CURVE_KINDS[points or key]
    return Panel(title=kind.title, unit=kind.unit, line=key, points=points, smooth=smooth, is_kl=key.startswith("kl/"))


PANELS = (
    _panel("kl/ref/drift"),
    _panel("kl/init/drift"),
    _panel("kl/probe/full_init"),
    _panel(FORGETTING),
    _panel("reward/mean", smooth=True),
    _panel("completion/tokens/mean", smooth=True),
    _panel("eval/heldout_sample/greedy_accuracy", points=ACCURACY),
)


def panels_with(measured: Iterable[str]) -> list[Panel]:
    """Return the panels for which any run has figures."""
    known = set(measured)
    return [panel for panel in PANELS if known & {panel.line, panel.points}]


Segment = tuple[int, float, float]
"""Step of a sync, and the part of the height of a panel in which it is marked: 0 below, 1 above."""


def sync_segments(steps_of: Sequence[Sequence[int]]) -> list[list[Segment]]:
    """Return for each run where its syncs are marked: runs that sync after the same step share the height of its line.

    >>> sync_segments([[10, 20], [10]])
    [[(10, 0.0, 0.5), (20, 0.0, 1.0)], [(10, 0.5, 1.0)]]
    """
    runs_at = defaultdict[int, list[int]](list)
    for index, steps in enumerate(steps_of):
        for step in dict.fromkeys(steps):
            runs_at[step].append(index)
    return [
        [
            (step, runs_at[step].index(index) / len(runs_at[step]), (runs_at[step].index(index) + 1) / len(runs_at[step]))
            for step in dict.fromkeys(steps)
        ]
        for index, steps in enumerate(steps_of)
    ]
