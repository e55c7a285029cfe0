"""Pictures of a run over its steps, reference syncs marked; the pieces from which `grpo compare` draws several runs, too."""

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from grpo_core.run.curves import FORGETTING, Curve, RunCurves, SyncMarks, read_curves, step_table
from grpo_core.run.journal import Record

SMOOTHED = 5
"""Steps over which a thick line is the mean of a thin one."""
DPI = 120
SYMLOG_FROM = 20.0
"""A KL axis is logarithmic above its median if the largest value exceeds the median by more than this factor."""


def reward_figure(records: Sequence[Record], alarms: Collection[int] = ()) -> Figure:
    """Return reward, its spread inside groups, and the share of groups that teach nothing; alarms by their steps."""
    run, title = read_curves(records), f"Reward (thin: each step, thick: mean of {SMOOTHED})"
    with _panels(run, alarms, title, "reward", "share") as (figure, top, bottom):
        draw_curve(top, run.get("reward/mean"), "reward", smooth=True)
        draw_curve(top, run.get("group/best_mean"), "best of its group", style=":")
        points: dict[str, Any] = {"color": "black", "markersize": 5}
        draw_curve(top, run.get("eval/heldout/greedy_accuracy"), "held-out greedy accuracy", style="s", **points)
        draw_curve(top, run.get("eval/heldout_sample/greedy_accuracy"), "the same, on a sample", style=".", **points)
        draw_curve(bottom, run.get("group/zero_std_frac"), "groups with equal rewards")
        draw_curve(bottom, run.get("completion/truncated_frac"), "truncated completions", style="--")
        bottom.set_ylim(-0.03, 1.03)
    return figure


def drift_figure(records: Sequence[Record], alarms: Collection[int] = ()) -> Figure:
    """Return KL to the reference and to the initial policy (estimated and exact), and entropy; alarms by their steps."""
    run = read_curves(records)
    with _panels(run, alarms, "Drift of the policy", "KL, nats per token", "nats per token") as (figure, top, bottom):
        reference = run.get("kl/ref/drift")
        draw_band(top, reference)
        draw_curve(top, reference, "to the current reference (± 1 s.e.)")
        draw_curve(top, run.get("kl/init/drift"), "to the initial policy", style="--")
        draw_curve(
            top, run.get("kl/probe/full_init"), "the same, exact on the probe set", color="0.2", style=":o", markersize=3
        )
        start_kl_at_zero(top, [curve for key, curve in run.curves.items() if key.startswith("kl/") and key != FORGETTING])
        draw_curve(bottom, run.get("policy/entropy"), "entropy")
    return figure


@contextlib.contextmanager
def _panels(run: RunCurves, alarms: Collection[int], title: str, above: str, below: str) -> Iterator[tuple[Figure, Axes, Axes]]:
    """Yield a figure of two panels over the same steps, to be drawn into; then mark syncs and alarms and label the axes."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    yield figure, top, bottom
    for panel, label in ((top, above), (bottom, below)):
        mark_syncs(panel, run.syncs, label=panel is top)
        mark_alarms(panel, alarms, label=panel is top)
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(loc="best", fontsize="small")
    bottom.set_xlabel("step")
    figure.suptitle(title)


def save_figures(records: Sequence[Record], folder: Path, alarms: Collection[int] = ()) -> list[Path]:
    """Write reward.png and kl.png into `folder`, and of a probe panel.png and places.png; return their paths.

    The steps of alarms are marked in the first two.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = {folder / "reward.png": reward_figure(records, alarms), folder / "kl.png": drift_figure(records, alarms)}
    places = read_places(records)
    if places is not None:
        figures |= {folder / "panel.png": panel_figure(records), folder / "places.png": places_figure([("", places)])}
    for path, figure in figures.items():
        figure.savefig(path, dpi=DPI)
    return list(figures)


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
    values = np.concatenate([curve.values for curve in curves]) if curves else np.empty(0)
    scale_kl(axes, values[np.isfinite(values)])


def scale_kl(axes: Axes, values: np.ndarray) -> None:
    """Scale a KL axis by its finite values: from 0 on, symmetric-logarithmic where the largest is far above the median."""
    positive = values[values > 0]
    if not len(positive):
        return
    median = float(np.median(positive))
    if positive.max() > SYMLOG_FROM * median:
        axes.set_yscale("symlog", linthresh=median)
    if values.min() >= -1e-6 * float(positive.max()):  # else matplotlib shows a decade below 0, where nothing is
        axes.set_ylim(bottom=0)


def mark_alarms(axes: Axes, alarms: Collection[int], label: bool = True) -> None:
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


LINES = {
    "nats per token": {
        "kl/probe/full_init": ("reverse KL: what β pulls on", "-o"),
        "kl/probe/forward_own_init": ("forward KL", "--s"),
        "kl/probe/renyi_half_init": ("Rényi-½", ":^"),
    },
    "share": {
        "kl/probe/tv_init": ("total variation", "-o"),
        "kl/probe/top1_changed_init": ("positions with another most likely token", "--s"),
    },
    "nats per completion": {FORGETTING: ("forward KL on the initial policy's own completions (± 1 s.e.)", "-o")},
}
"""Unit -> what is drawn in its panel: metric -> name and style."""
AT_POSITION = re.compile(r"kl/probe/init_at_(\d+)")
WIDTH, MAP_HEIGHT = 9.0, 2.6
"""In inches."""
TITLE_LETTERS = 110
"""What fits above a row of maps."""
MOST_TICKS = 12
"""Steps that are written below a row of maps."""


def read_places(records: Sequence[Record]) -> pandas.DataFrame | None:
    """Return what a run's journal holds of where its drift is; None where it was never probed.

    A row for each bin of positions (`0`, `1`, `2-3`, `4-7`, ... as in every run), a column for each step with a probe, in it
    the exact KL to the initial policy in nats a token; NaN where no completion was as long.
    """
    steps = step_table(records)
    starts = sorted(int(match[1]) for key in steps.columns if (match := AT_POSITION.fullmatch(str(key))))
    found = steps[[f"kl/probe/init_at_{start}" for start in starts]].dropna(how="all").T
    found.index = pandas.Index([str(start) if start < 2 else f"{start}-{2 * start - 1}" for start in starts])
    return None if found.empty else found


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


def panel_figure(records: Sequence[Record]) -> Figure:
    """Return the divergences of the probe over steps: per token, as shares, and of the initial policy's completions."""
    run = read_curves(records, [key for drawn in LINES.values() for key in drawn])
    figure, grid = panel_grid(len(LINES), 1, (WIDTH, 2.5), sharex=True)
    for axes, (unit, drawn) in zip(grid, LINES.items(), strict=True):
        found = [curve for key in drawn if (curve := run.get(key)) is not None]
        for curve in found:
            name, style = drawn[curve.key]
            draw_curve(axes, curve, name, style=style, markersize=3.5)
        if FORGETTING in drawn:
            draw_band(axes, run.get(FORGETTING))
        start_kl_at_zero(axes, found)
        axes.set_ylabel(unit)
        axes.grid(alpha=0.3)
        if found:
            axes.legend(loc="best", fontsize="small")
        mark_syncs(axes, run.syncs, label=False)
    grid[-1].set_xlabel("step")
    figure.suptitle("How far the policy is from the initial one, in several measures (probe)")
    return figure
