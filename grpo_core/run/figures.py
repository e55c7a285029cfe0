"""Pictures of a run: reward and KL over steps, reference syncs marked."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
import pandas

from grpo_core.run.journal import Record
from grpo_core.run.tables import step_table, sync_table

mpl.use("Agg")  # files only: no window, no display needed

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def reward_figure(records: Sequence[Record]) -> Figure:
    """Return reward, its spread inside groups, and the share of groups that teach nothing, over steps."""
    steps = step_table(records)
    with _panels(records, "Reward (thin: each step, thick: mean of 5)", "reward", "share") as (figure, top, bottom):
        _line(top, steps, "reward/mean", "reward", smooth=True)
        _line(top, steps, "group/best_mean", "best of its group", style=":")
        _eval_points(top, records)
        _line(bottom, steps, "group/zero_std_frac", "groups with equal rewards")
        _line(bottom, steps, "completion/truncated_frac", "truncated completions", style="--")
        bottom.set_ylim(-0.03, 1.03)
    return figure


def drift_figure(records: Sequence[Record]) -> Figure:
    """Return KL to the current reference and to the initial policy, entropy, and parameter distance, over steps."""
    steps = step_table(records)
    with _panels(records, "Drift of the policy", "KL, nats per token", "nats") as (figure, top, bottom):
        if "kl/ref/k3" in steps:
            centre, error = steps["kl/ref/k3"], steps["kl/ref/se"]
            top.fill_between(steps.index, centre - error, centre + error, alpha=0.25, linewidth=0)
        _line(top, steps, "kl/ref/k3", "to the current reference (k3, +- 1 s.e.)")
        _line(top, steps, "kl/init/k3", "to the initial policy (k3)", style="--")
        _line(bottom, steps, "policy/entropy", "entropy, nats")
    return figure


@contextlib.contextmanager
def _panels(records: Sequence[Record], title: str, above: str, below: str) -> Iterator[tuple[Figure, Axes, Axes]]:
    """Yield a figure of two panels over the same steps, to be drawn into; then mark the syncs and label the axes."""
    syncs = sync_table(records)
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=(2, 1), layout="constrained")
    yield figure, top, bottom
    for panel, label in ((top, above), (bottom, below)):
        mark_syncs(panel, syncs, label=panel is top)
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(loc="best", fontsize="small")
    bottom.set_xlabel("step")
    figure.suptitle(title)


def save_figures(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write reward.png and kl.png into `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {folder / "reward.png": reward_figure(records), folder / "kl.png": drift_figure(records)}
    for path, figure in figures.items():
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
    return list(figures)


def _line(axes: Axes, steps: pandas.DataFrame, key: str, label: str, *, style: str = "-", smooth: bool = False) -> None:
    if key not in steps:
        return
    values = steps[key].dropna()
    if not smooth:
        axes.plot(values.index, values, style, label=label)
        return
    (thin,) = axes.plot(values.index, values, style, alpha=0.4, linewidth=1)
    # Over all steps, those without a figure included: five steps are five steps, however many of them were measured.
    means = steps[key].rolling(5, min_periods=1).mean()[values.index]
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
        axes.axvline(
            step + 0.5,
            color="tab:red",
            linestyle="-.",
            linewidth=1,
            alpha=0.7,
            label="reference sync" if label and index == 0 else None,
        )
