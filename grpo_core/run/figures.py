"""Pictures of a run over its steps, reference syncs marked; the pieces from which `grpo compare` draws several runs, too."""

from collections.abc import Collection, Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from grpo_core.run.curves import Curve, SyncMarks, read_curves
from grpo_core.run.journal import Record

WIDTH, HEIGHT, MAP_HEIGHT = 9.0, 6.0, 2.6
"""In inches."""
TITLE_LETTERS = 110
"""What fits above a row of maps."""
MOST_TICKS = 12
"""Steps that are written below a row of maps."""
SMOOTHED = 5
"""Steps over which a thick line is the mean of a thin one."""
SYMLOG_FROM = 20.0
"""A KL axis is logarithmic above its median if the largest value exceeds the median by more than this factor."""


Panels = dict[str, dict[str, tuple[str, dict[str, Any]]]]
"""Label of a panel's axis -> what is drawn in it: metric -> name in the legend and look, as `draw_curve` takes it."""
POINTS = {"color": "black", "markersize": 5}
REWARD: Panels = {
    "reward": {
        "reward/mean": ("reward", {"smooth": True}),
        "group/best_mean": ("best of its group", {"style": ":"}),
        "eval/heldout/greedy_accuracy": ("held-out greedy accuracy", {"style": "s", **POINTS}),
        "eval/heldout_sample/greedy_accuracy": ("the same, on a sample", {"style": ".", **POINTS}),
    },
    "share": {
        "group/zero_std_frac": ("groups with equal rewards", {}),
        "completion/truncated_frac": ("truncated completions", {"style": "--"}),
    },
}
DRIFT: Panels = {
    "KL, nats per token": {
        "kl/ref/drift": ("to the current reference (± 1 s.e.)", {}),
        "kl/init/drift": ("to the initial policy", {"style": "--"}),
        "kl/probe/full_init": ("the same, exact on the probe set", {"style": ":o", "color": "0.2", "markersize": 3}),
    },
    "nats per token": {"policy/entropy": ("entropy", {})},
}


def reward_figure(records: Sequence[Record], alarms: Collection[int] = ()) -> Figure:
    """Return reward, its spread inside groups, and the share of groups that teach nothing; alarms by their steps."""
    figure = _over_steps(records, f"Reward (thin: each step, thick: mean of {SMOOTHED})", REWARD, alarms)
    figure.axes[1].set_ylim(-0.03, 1.03)
    return figure


def drift_figure(records: Sequence[Record], alarms: Collection[int] = ()) -> Figure:
    """Return KL to the reference and to the initial policy (estimated and exact), and entropy; alarms by their steps."""
    return _over_steps(records, "Drift of the policy", DRIFT, alarms)


def _over_steps(
    records: Sequence[Record],
    title: str,
    panels: Panels,
    alarms: Collection[int] = (),
) -> Figure:
    run = read_curves(records, [key for drawn in panels.values() for key in drawn])
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    grid = figure.subplots(len(panels), 1, sharex=True, height_ratios=(2, 1))
    for number, (axes, (unit, drawn)) in enumerate(zip(grid, panels.items(), strict=True)):
        for key, (name, look) in drawn.items():
            draw_curve(axes, run.get(key), name, **look)
            if key == "kl/ref/drift":
                draw_band(axes, run.get(key))
        start_kl_at_zero(axes, [curve for key in drawn if key.startswith("kl/") and (curve := run.get(key)) is not None])
        mark_syncs(axes, run.syncs, label=number == 0)
        _mark_alarms(axes, alarms, label=number == 0)
        axes.set_ylabel(unit)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", fontsize="small")
    grid[-1].set_xlabel("step")
    figure.suptitle(title)
    return figure


def draw_curve(
    axes: Axes, curve: Curve | None, label: str | None, *, style: str = "-", smooth: bool = False, **look: Any
) -> None:
    """Draw a curve; a smoothed one as a thin line of its values under the thick one of their means.

    Args:
        axes: to draw into.
        curve: None where the run never measured it: nothing is drawn.
        label: in the legend.
        style: of matplotlib, such as `--`.
        smooth: whether the line is the mean of the last `SMOOTHED` steps.
        look: of the line, as matplotlib has it.
    """
    if curve is None:
        return
    if not smooth:
        axes.plot(curve.steps, curve.values, style, label=label, **look)
        return
    (thin,) = axes.plot(curve.steps, curve.values, style, **{**look, "alpha": 0.35, "linewidth": 0.8})
    axes.plot(curve.steps, curve.averaged(SMOOTHED), style, label=label, **{"color": thin.get_color(), **look})


def draw_band(axes: Axes, curve: Curve | None, **look: Any) -> None:
    """Shade the bars of a curve: one standard error to each side of a KL."""
    if curve is not None and curve.low is not None and curve.high is not None:
        axes.fill_between(curve.steps, curve.low, curve.high, **{"alpha": 0.2, "linewidth": 0, **look})


def start_kl_at_zero(axes: Axes, curves: Sequence[Curve]) -> None:
    """Let a KL axis begin at 0, the least that a KL can be; where a few values would press the others down, scale it.

    An estimate below 0 (k1 has such, k3 and an exact KL do not beyond rounding) stays in the picture.
    """
    values = np.concatenate([np.empty(0), *(curve.values for curve in curves)])
    scale_kl(axes, values[np.isfinite(values)])


def scale_kl(axes: Axes, values: np.ndarray) -> None:
    """Scale a KL axis by its finite values: from 0 on, symmetric-logarithmic where the largest is far above the median."""
    positive = values[values > 0]
    if not len(positive):
        return
    median, largest = float(np.median(positive)), float(positive.max())
    if largest > SYMLOG_FROM * median:
        axes.set_yscale("symlog", linthresh=median)
    if values.min() >= -1e-6 * largest:  # else matplotlib shows a decade below 0, where nothing is
        axes.set_ylim(bottom=0)


def _mark_alarms(axes: Axes, alarms: Collection[int], *, label: bool) -> None:
    """Draw a triangle at the upper edge for each step at which an alarm began."""
    if alarms:
        at_edge: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "linestyle": "none", "zorder": 5}
        name = "alarm of a rule" if label else None
        axes.plot(sorted(alarms), [1.0] * len(alarms), marker="v", color="tab:orange", markersize=8, label=name, **at_edge)


def mark_syncs(axes: Axes, syncs: SyncMarks, label: bool = True) -> None:
    """Draw a dotted vertical line at each reference sync."""
    for index, place in enumerate(syncs.places):
        name = "reference sync" if label and index == 0 else None
        axes.axvline(place, color="tab:red", linestyle=":", linewidth=1.2, alpha=0.7, label=name)


def panel_grid(
    count: int, columns: int, size: tuple[float, float], around: float = 0.6, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, each of a size in inches, row by row.

    Args:
        count: of panels.
        columns: of the grid.
        size: width and height of a panel.
        around: height of legend and titles.
        shared: which axes the panels share, as matplotlib has it; the lowest ones of a column show the steps.
    """
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + around), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **shared).ravel().tolist()
    for unused in grid[count:]:
        unused.remove()
    for axes in grid[max(0, count - columns) : count]:
        axes.tick_params(labelbottom=True)
    return figure, grid[:count]


def places_figure(named: Sequence[tuple[str, pandas.DataFrame]]) -> Figure:
    """Return a heat map of each run, positions over probes, one scale of colours; several share a row if there are many.

    Args:
        named: what each is called, and what `read_places` gives of it.
    """
    columns = next(columns for columns, most in ((1, 3), (2, 10), (4, len(named))) if len(named) <= most)
    figure, grid = panel_grid(len(named), columns, (WIDTH / columns, MAP_HEIGHT))
    nats = np.concatenate([places.to_numpy().ravel() for _, places in named])
    scale = Normalize(0, max(nats[np.isfinite(nats)], default=0.0) or 1.0)
    for number, (axes, (name, places)) in enumerate(zip(grid, named, strict=True)):
        image = axes.imshow(places, norm=scale, cmap="viridis", aspect="auto", origin="lower", interpolation="nearest")
        axes.set_yticks(range(len(places)), labels=places.index)
        shown = range(0, len(places.columns), -(-len(places.columns) * columns // MOST_TICKS))
        axes.set_xticks(list(shown), labels=[str(places.columns[index]) for index in shown])
        axes.set_ylabel("position" if number % columns == 0 else "")
        size, title = "medium" if columns == 1 else "x-small", fill(name, TITLE_LETTERS // columns)
        axes.set_title(title, loc="left", fontsize=size, fontweight="bold")
    figure.supxlabel("step of the probe", fontsize="medium")
    figure.colorbar(image, ax=grid, label="nats per token", fraction=0.05)
    figure.suptitle("Where the drift is: exact KL to the initial policy on the probe, by position in the completion")
    return figure
