"""What is drawn of a comparison, panel by panel; as PNG: the curves of all runs over each other, one legend below."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo_core.compare.comparison import ACCURACY, RunComparison
from grpo_core.compare.runs import ComparedRun
from grpo_core.config.spelling import cut
from grpo_core.pages import STYLE, Picture, save_picture
from grpo_core.run.curves import AFTER_STEP, CURVE_KINDS, FORGETTING, read_places
from grpo_core.run.figures import SMOOTHED, draw_band, draw_curve, panel_grid, places_figure, start_kl_at_zero
from grpo_core.text import visible

STYLES: dict[str, Literal["-", "--", ":", "-."]] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
"""Dashes as plotly names them -> as matplotlib does."""
MOST_BANDS = 4
"""Runs whose standard errors are shaded; more of them would hide each other."""
LEGEND_CHARACTERS = 60
PICTURES = {
    "kl": "KL of each run over steps",
    "learning": "Reward, length and held-out accuracy of each run over steps",
    "places": "Heat maps of the drift of each run, positions over steps",
}
"""Name of a PNG file -> what it shows."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One diagram: a line of one metric, a mean of the last five steps over a thin one of each step if it is smooth.

    The other metric, `points`, is drawn as squares with bars: evaluations before and after training.
    """

    title: str
    unit: str
    line: str
    points: str | None
    smooth: bool
    is_kl: bool


PANELS = tuple(
    Panel(
        title=CURVE_KINDS[points or line].title,
        unit=CURVE_KINDS[points or line].unit,
        line=line,
        points=points,
        smooth=line in ("reward/mean", "completion/tokens/mean"),
        is_kl=line.startswith("kl/"),
    )
    for line, points in (
        *((key, None) for key in ("kl/ref/drift", "kl/init/drift", "kl/probe/full_init", FORGETTING)),
        *((key, None) for key in ("reward/mean", "completion/tokens/mean")),
        ("eval/heldout_sample/greedy_accuracy", ACCURACY),
    )
)
Segment = tuple[int, float, float]
"""Step of a sync, and the lower and upper end of its line as shares of the height."""


def panels_with(metrics: Collection[str]) -> list[Panel]:
    """Return the panels that show any of some metrics."""
    return [panel for panel in PANELS if panel.line in metrics or panel.points in metrics]


def sync_segments(steps_of: Sequence[Sequence[int]]) -> list[list[Segment]]:
    """Return where each run's syncs are drawn: runs that sync after the same step share the height of its line.

    >>> sync_segments([[5], [5, 10]])
    [[(5, 0.0, 0.5)], [(5, 0.5, 1.0), (10, 0.0, 1.0)]]
    """
    sharing = {step: [at for at, steps in enumerate(steps_of) if step in steps] for steps in steps_of for step in steps}
    return [
        [
            (step, sharing[step].index(at) / len(sharing[step]), (sharing[step].index(at) + 1) / len(sharing[step]))
            for step in steps
        ]
        for at, steps in enumerate(steps_of)
    ]


def save_pictures(comparison: RunComparison, folder: Path) -> dict[str, Picture]:
    """Write kl.png, learning.png and places.png into a folder, each where there is something to see; return them by name."""
    panels = panels_with([key for key in CURVE_KINDS if comparison.has(key)])
    read = [(_shortened(one.label), read_places(one.run.records)) for one in comparison.runs]
    probed = [(label, places) for label, places in read if places is not None]
    drawn = {"kl": [panel for panel in panels if panel.is_kl], "learning": [panel for panel in panels if not panel.is_kl]}
    figures = {name: comparison_figure(comparison, found) for name, found in drawn.items() if found}
    figures |= {"places": places_figure(probed)} if probed else {}
    for name in PICTURES:
        (folder / f"{name}.png").unlink(missing_ok=True)  # of an earlier comparison in this folder
    return {name: save_picture(figure, folder / f"{name}.png", PICTURES[name]) for name, figure in figures.items()}


@mpl.rc_context(STYLE)
def comparison_figure(comparison: RunComparison, panels: Sequence[Panel]) -> Figure:
    """Return panels over the same steps, one below the other, with one legend for all."""
    runs = comparison.runs
    names = [_shortened(one.label) for one in runs]
    handles = [
        Line2D([], [], color=one.colour, linestyle=STYLES[one.dash], linewidth=2, label=name)
        for one, name in zip(runs, names, strict=True)
    ]
    if any(len(one.curves.syncs) for one in runs):
        handles.append(Line2D([], [], color="0.4", linestyle=":", label="reference sync, in the run's colour"))
    columns = max(1, min(5, 110 // (8 + max(map(len, names)))))
    figure, grid = panel_grid(len(panels), 1, (10.0, 2.7), 0.5 + 0.2 * -(-len(handles) // columns), sharex=True)
    segments = sync_segments([one.curves.syncs.steps.tolist() for one in runs])
    for axes, panel in zip(grid, panels, strict=True):
        for one, marks in zip(runs, segments, strict=True):
            _draw_run(axes, panel, one, marks, with_band=len(runs) <= MOST_BANDS)
        if panel.is_kl:
            start_kl_at_zero(axes, [curve for one in runs if (curve := one.curves.get(panel.line)) is not None])
        note = f" (thick: mean of {SMOOTHED} steps)" if panel.smooth else ""
        axes.set_title(f"{panel.title}{note}", loc="left", fontsize="medium", fontweight="bold")
        axes.set_ylabel(panel.unit)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
    grid[-1].set_xlabel("step")
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _draw_run(axes: Axes, panel: Panel, compared: ComparedRun, marks: Sequence[Segment], *, with_band: bool) -> None:
    curve, points = compared.curves.get(panel.line), compared.curves.get(panel.points or "")
    look: dict[str, Any] = {"color": compared.colour}
    if panel.is_kl and with_band:
        draw_band(axes, curve, alpha=0.15, **look)
    # A curve of few points, such as a probe's, has markers, without which it could not be seen.
    few = curve is not None and (len(curve) <= 3 or len(curve) < (curve.steps[-1] - curve.steps[0]) / 2)
    style = f"{STYLES[compared.dash]}{'o' if few else ''}"
    draw_curve(axes, curve, None, style=style, smooth=panel.smooth, linewidth=1.6, markersize=3.5, **look)
    draw_curve(axes, points, None, style="s", markersize=6, markeredgecolor="white", zorder=3, **look)
    if points is not None and points.low is not None and points.high is not None:
        bars = np.clip(np.vstack([points.values - points.low, points.high - points.values]), 0, None)
        axes.errorbar(points.steps, points.values, yerr=bars, fmt="none", elinewidth=1, alpha=0.6, **look)
    for step, low, high in marks:
        axes.axvline(step + AFTER_STEP, low, high, linestyle=":", linewidth=1.3, alpha=0.8, **look)


def _shortened(label: str) -> str:
    """Return the name of a run for a legend, which leaves out what begins with an underscore."""
    text = visible(label)
    return cut(f" {text}" if text.startswith("_") else text, LEGEND_CHARACTERS)
