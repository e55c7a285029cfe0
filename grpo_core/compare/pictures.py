"""What is drawn of a comparison, panel by panel; as PNG: the curves of all runs over each other, one legend below."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo_core.compare.comparison import RunComparison
from grpo_core.compare.differences import ACCURACY
from grpo_core.compare.runs import ComparedRun
from grpo_core.plain_text import visible
from grpo_core.run.curves import AFTER_STEP, CURVE_KINDS, FORGETTING, Curve
from grpo_core.run.figures import DPI, SMOOTHED, draw_band, draw_curve, start_kl_at_zero
from grpo_core.run.probe_pictures import places_figure, read_places
from grpo_core.sweep.report.files import take_literally

STYLES: dict[str, Literal["-", "--", ":", "-."]] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MOST_BANDS = 4
"""Runs whose standard errors are shaded; more of them would hide each other."""
LEGEND_CHARACTERS = 60
PICTURES = ("kl", "learning", "places")
WIDTH, PANEL_HEIGHT, LEGEND_LINE = 10.0, 2.7, 0.2


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


def save_pictures(comparison: RunComparison, folder: Path) -> dict[str, Path]:
    """Write kl.png, learning.png and places.png into a folder, each where there is something to see; return them by name."""
    panels = panels_with(key for key in CURVE_KINDS if comparison.has(key))
    read = [(_shortened(one.label), read_places(one.run.records)) for one in comparison.runs]
    probed = [(label, places) for label, places in read if places is not None]
    drawn = {
        "kl": [panel for panel in panels if panel.is_kl],
        "learning": [panel for panel in panels if not panel.is_kl],
    }
    figures = {name: comparison_figure(comparison, found) for name, found in drawn.items() if found}
    figures |= {"places": places_figure(probed)} if probed else {}
    for name in PICTURES:
        (folder / f"{name}.png").unlink(missing_ok=True)  # of an earlier comparison in this folder
    for name, figure in figures.items():
        take_literally(figure)
        figure.savefig(folder / f"{name}.png", dpi=DPI)
    return {name: folder / f"{name}.png" for name in figures}


def comparison_figure(comparison: RunComparison, panels: Sequence[Panel]) -> Figure:
    """Return panels over the same steps, one below the other, with one legend for all."""
    runs = comparison.runs
    columns = _legend_columns([compared.label for compared in runs])
    lines = -(-(len(runs) + 1) // columns)
    figure = Figure(figsize=(WIDTH, PANEL_HEIGHT * len(panels) + LEGEND_LINE * lines + 0.5), layout="constrained")
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    segments = sync_segments([compared.curves.syncs.steps.tolist() for compared in runs])
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, runs, segments)
    grid[-1].set_xlabel("step")
    figure.legend(handles=_handles(runs), loc="outside lower center", ncols=columns, fontsize="small", frameon=False)
    return figure


def _draw_panel(axes: Axes, panel: Panel, runs: Sequence[ComparedRun], segments: Sequence[list[Segment]]) -> None:
    drawn: list[Curve] = []
    for compared, marks in zip(runs, segments, strict=True):
        look: dict[str, Any] = {"color": compared.colour, "linewidth": 1.6, "markersize": 3.5}
        curve = compared.curves.get(panel.line)
        if panel.is_kl and len(runs) <= MOST_BANDS:
            draw_band(axes, curve, color=compared.colour, alpha=0.15)
        draw_curve(axes, curve, None, style=_style(compared, curve), smooth=panel.smooth, **look)
        _draw_evaluations(axes, compared, compared.curves.get(panel.points or ""))
        for step, low, high in marks:
            axes.axvline(step + AFTER_STEP, low, high, color=compared.colour, linestyle=":", linewidth=1.3, alpha=0.8)
        drawn += [curve] if curve is not None else []
    if panel.is_kl:
        start_kl_at_zero(axes, drawn)
    note = f" (thick: mean of {SMOOTHED} steps)" if panel.smooth else ""
    axes.set_title(f"{panel.title}{note}", loc="left", fontsize="medium", fontweight="bold")
    axes.set_ylabel(panel.unit)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)


def _style(compared: ComparedRun, curve: Curve | None) -> str:
    """Return the line of a run; a curve of few points, such as a probe's, has markers, without which it could not be seen."""
    few = curve is not None and (len(curve) <= 3 or len(curve) < (curve.steps[-1] - curve.steps[0]) / 2)
    return f"{STYLES[compared.dash]}{'o' if few else ''}"


def _draw_evaluations(axes: Axes, compared: ComparedRun, curve: Curve | None) -> None:
    if curve is None:
        return
    axes.plot(curve.steps, curve.values, "s", color=compared.colour, markersize=6, markeredgecolor="white", zorder=3)
    if curve.low is not None and curve.high is not None:
        bars = np.clip(np.vstack([curve.values - curve.low, curve.high - curve.values]), 0, None)
        axes.errorbar(curve.steps, curve.values, yerr=bars, fmt="none", color=compared.colour, elinewidth=1, alpha=0.6)


def _handles(runs: Sequence[ComparedRun]) -> list[Line2D]:
    lines = [
        Line2D([], [], color=compared.colour, linestyle=STYLES[compared.dash], linewidth=2, label=_shortened(compared.label))
        for compared in runs
    ]
    sync = Line2D([], [], color="0.4", linestyle=":", label="reference sync, in the run's colour")
    return [*lines, *([sync] if any(len(compared.curves.syncs) for compared in runs) else [])]


def _shortened(label: str) -> str:
    text = visible(label)
    # matplotlib leaves out of the legend what begins with an underscore
    text = f" {text}" if text.startswith("_") else text
    return text if len(text) <= LEGEND_CHARACTERS else f"{text[: LEGEND_CHARACTERS - 1]}…"


def _legend_columns(labels: Sequence[str]) -> int:
    widest = max(min(len(label), LEGEND_CHARACTERS) for label in labels)
    return max(1, min(5, len(labels) + 1, int(WIDTH * 11 / (widest + 8))))
