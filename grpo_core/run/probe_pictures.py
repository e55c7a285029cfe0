"""Pictures of the probe: divergences from the initial policy over steps, and a heat map of where they are."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from grpo_core.run.curves import FORGETTING, Floats, read_curves
from grpo_core.run.figures import draw_band, draw_curve, mark_syncs, scale_kl
from grpo_core.run.journal import Record

PER_TOKEN = {
    "kl/probe/full_init": ("reverse KL: what β pulls on", "-o"),
    "kl/probe/forward_own_init": ("forward KL", "--s"),
    "kl/probe/renyi_half_init": ("Rényi-½", ":^"),
}
SHARES = {
    "kl/probe/tv_init": ("total variation", "-o"),
    "kl/probe/top1_changed_init": ("positions with another most likely token", "--s"),
}
AT_POSITION = re.compile(r"kl/probe/init_at_(\d+)")
WIDTH, MAP_HEIGHT = 9.0, 2.6
"""In inches."""
TITLE_LETTERS = 110
"""What fits above a row of maps."""
MOST_TICKS = 12
"""Steps that are written below a row of maps."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DriftPlaces:
    """Exact KL to the initial policy by position of the token, at each probe of a run."""

    steps: tuple[int, ...]
    starts: tuple[int, ...]
    """First position of each bin."""
    nats: Floats
    """[bin, probe] in nats a token; NaN where no completion was as long."""

    @property
    def bins(self) -> tuple[str, ...]:
        """What each bin is called: `0`, `1`, `2-3`, `4-7`, ... As in every run, whatever its longest completion."""
        return tuple(str(start) if start < 2 else f"{start}-{2 * start - 1}" for start in self.starts)


def read_places(records: Sequence[Record]) -> DriftPlaces | None:
    """Return what a run's journal holds of where its drift is; None where it was never probed."""
    found = {
        (int(match[1]), record.step): value
        for record in records
        if record.kind == "step"
        for key, value in record.metrics.items()
        if (match := AT_POSITION.fullmatch(key))
    }
    if not found:
        return None
    starts, steps = (tuple(sorted({pair[index] for pair in found})) for index in (0, 1))
    nats = np.asarray([[found.get((start, step), np.nan) for step in steps] for start in starts], dtype=float)
    return DriftPlaces(steps=steps, starts=starts, nats=nats)


def places_figure(named: Sequence[tuple[str, DriftPlaces]]) -> Figure:
    """Return a heat map of each run, positions over probes, one scale of colours; several share a row if there are many.

    Args:
        named: what each is called, and what it shows.
    """
    columns = next(columns for columns, most in ((1, 3), (2, 10), (4, len(named))) if len(named) <= most)
    rows = -(-len(named) // columns)
    figure = Figure(figsize=(WIDTH, MAP_HEIGHT * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in grid[len(named) :]:
        unused.remove()
    grid = grid[: len(named)]
    finite = np.concatenate([places.nats[np.isfinite(places.nats)] for _, places in named])
    scale = Normalize(0, float(finite.max()) if len(finite) and finite.max() > 0 else 1.0)
    for number, (axes, (name, places)) in enumerate(zip(grid, named, strict=True)):
        image = axes.imshow(places.nats, norm=scale, cmap="viridis", aspect="auto", origin="lower", interpolation="nearest")
        axes.set_yticks(range(len(places.bins)), labels=places.bins)
        shown = range(0, len(places.steps), -(-len(places.steps) * columns // MOST_TICKS))
        axes.set_xticks(list(shown), labels=[str(places.steps[index]) for index in shown])
        axes.set_ylabel("position" if number % columns == 0 else "")
        small = {} if columns == 1 else {"fontsize": "x-small"}
        axes.set_title(fill(name, TITLE_LETTERS // columns), loc="left", **{"fontsize": "medium", "fontweight": "bold"} | small)
    figure.supxlabel("step of the probe", fontsize="medium")
    figure.colorbar(image, ax=list(grid), label="nats per token", fraction=0.05)
    figure.suptitle("Where the drift is: exact KL to the initial policy on the probe, by position in the completion")
    return figure


def panel_figure(records: Sequence[Record]) -> Figure:
    """Return the divergences of the probe over steps: per token, as shares, and of the initial policy's completions."""
    run = read_curves(records, (*PER_TOKEN, *SHARES, FORGETTING))
    figure = Figure(figsize=(WIDTH, 8), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True)
    for axes, drawn, label in ((top, PER_TOKEN, "nats per token"), (middle, SHARES, "share")):
        for key, (name, style) in drawn.items():
            draw_curve(axes, run.get(key), name, style=style, markersize=3.5)
        axes.set_ylabel(label)
    forgetting = run.get(FORGETTING)
    draw_band(bottom, forgetting)
    draw_curve(bottom, forgetting, "forward KL on the initial policy's own completions (± 1 s.e.)", style="-o", markersize=3.5)
    bottom.set_ylabel("nats per completion")
    bottom.set_xlabel("step")
    for axes in (top, middle, bottom):
        _finish(axes)
        mark_syncs(axes, run.syncs, label=False)
    figure.suptitle("How far the policy is from the initial one, in several measures (probe)")
    return figure


def _finish(axes: Axes) -> None:
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines] or [np.empty(0)])
    scale_kl(axes, values[np.isfinite(values)])
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize="small")
