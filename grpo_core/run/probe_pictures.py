"""Pictures of the probe: divergences from the initial policy over steps, and a heat map of where they are."""

import re
from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from grpo_core.run.curves import FORGETTING, read_curves
from grpo_core.run.figures import draw_band, draw_curve, mark_syncs, start_kl_at_zero
from grpo_core.run.journal import Record
from grpo_core.run.tables import step_table

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
