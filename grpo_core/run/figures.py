"""Pictures of a run over its steps, reference syncs marked; the pieces from which `grpo compare` draws several runs, too."""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_core.run.curves import FORGETTING, Curve, RunCurves, SyncMarks, read_curves
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
    from grpo_core.run.probe_pictures import panel_figure, places_figure, read_places

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
