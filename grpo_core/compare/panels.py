"""What the pictures and the page draw, panel by panel, and where syncs of several runs are marked."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grpo_core.compare.paired import ACCURACY
from grpo_core.run.curves import CURVE_KINDS, FORGETTING

PLACES = "places"
"""The picture of where each run's drift is."""


@dataclass(frozen=True, kw_only=True)
class ComparisonPanel:
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
    """Whether the axis begins at 0."""


def _panel(key: str, *, smooth: bool = False, points: str | None = None) -> ComparisonPanel:
    kind = CURVE_KINDS[key]
    title = CURVE_KINDS[points].title if points else kind.title
    return ComparisonPanel(title=title, unit=kind.unit, line=key, points=points, smooth=smooth, is_kl=key.startswith("kl/"))


PANELS = (
    _panel("kl/ref/drift"),
    _panel("kl/init/drift"),
    _panel("kl/probe/full_init"),
    _panel(FORGETTING),
    _panel("reward/mean", smooth=True),
    _panel("completion/tokens/mean", smooth=True),
    _panel("eval/heldout_sample/greedy_accuracy", points=ACCURACY),
)


def panels_with(measured: Iterable[str]) -> list[ComparisonPanel]:
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
    runs_at: Mapping[int, list[int]] = defaultdict(list)
    for index, steps in enumerate(steps_of):
        for step in dict.fromkeys(steps):
            runs_at[step].append(index)
    return [
        [_segment(step, runs_at[step].index(index), len(runs_at[step])) for step in dict.fromkeys(steps)]
        for index, steps in enumerate(steps_of)
    ]


def _segment(step: int, place: int, count: int) -> Segment:
    return step, place / count, (place + 1) / count
