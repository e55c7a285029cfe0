"""Pictures of a run: reward and KL over steps, reference syncs marked."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import pandas

from grpo_core.run.journal import Record
from grpo_core.run.tables import step_table, sync_table

mpl.use("Agg")  # files only: no window, no display needed

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SMOOTHING_STEPS = 5


def reward_figure(records: Sequence[Record]) -> Figure:
    """Return reward, its spread inside groups, and the share of groups that teach nothing, over steps."""
    steps, syncs = step_table(records), sync_table(records)
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=(2, 1), layout="constrained")
    _line(top, steps, "reward/mean", "reward", smooth=True)
    _line(top, steps, "group/best_mean", "best of its group", style=":")
    _eval_points(top, records)
    mark_syncs(top, syncs)
    _finish(top, "reward")
    _line(bottom, steps, "group/zero_std_frac", "groups with equal rewards")
    _line(bottom, steps, "completion/truncated_frac", "truncated completions", style="--")
    mark_syncs(bottom, syncs, label=False)
    bottom.set(ylim=(-0.03, 1.03), xlabel="step")
    _finish(bottom, "share")
    figure.suptitle("Reward (thin: each step, thick: mean of 5)")
    return figure


def drift_figure(records: Sequence[Record]) -> Figure:
    """Return KL to the current reference and to the initial policy, entropy, and parameter distance, over steps."""
    steps, syncs = step_table(records), sync_table(records)
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=(2, 1), layout="constrained")
    if "kl/ref/k3" in steps:
        centre, error = steps["kl/ref/k3"], steps["kl/ref/se"]
        top.fill_between(steps.index, centre - error, centre + error, alpha=0.25, linewidth=0)
    _line(top, steps, "kl/ref/k3", "to the current reference (k3, +- 1 s.e.)")
    _line(top, steps, "kl/init/k3", "to the initial policy (k3)", style="--")
    mark_syncs(top, syncs)
    _finish(top, "KL, nats per token")
    _line(bottom, steps, "policy/entropy", "entropy, nats")
    mark_syncs(bottom, syncs, label=False)
    bottom.set_xlabel("step")
    _finish(bottom, "nats")
    figure.suptitle("Drift of the policy")
    return figure


def save_figures(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write reward.png and kl.png into `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in (("reward", reward_figure), ("kl", drift_figure)):
        figure = draw(records)
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=120)
        pyplot.close(figure)
    return paths


def _line(axes: Axes, steps: pandas.DataFrame, key: str, label: str, *, style: str = "-", smooth: bool = False) -> None:
    if key not in steps:
        return
    values = steps[key].dropna()
    if not smooth:
        axes.plot(values.index, values, style, label=label)
        return
    (thin,) = axes.plot(values.index, values, style, alpha=0.4, linewidth=1)
    # Over all steps, those without a figure included: five steps are five steps, however many of them were measured.
    means = steps[key].rolling(SMOOTHING_STEPS, min_periods=1).mean()[values.index]
    axes.plot(values.index, means, style, color=thin.get_color(), label=label)


def _eval_points(axes: Axes, records: Sequence[Record]) -> None:
    for name, marker, label in (("heldout", "s", "held-out greedy accuracy"), ("heldout_sample", ".", "the same, on a sample")):
        key = f"eval/{name}/greedy_accuracy"
        points = [(record.step, record.metrics[key]) for record in records if key in record.metrics]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color="black", markersize=5, label=label)


def mark_syncs(axes: Axes, syncs: pandas.DataFrame, label: bool = True) -> None:
    """Draw a line at each reference sync of a `sync_table`."""
    for index, step in enumerate(syncs["step"]):
        # Half a step later: the sync happens after its step and holds from the next one.
        name = "reference sync" if label and index == 0 else None
        axes.axvline(step + 0.5, color="tab:red", linestyle="-.", linewidth=1, alpha=0.7, label=name)


def _finish(axes: Axes, ylabel: str) -> None:
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize="small")
