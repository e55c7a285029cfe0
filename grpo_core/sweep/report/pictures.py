"""Pictures of what knobs do: effects of one, heat maps of two, costs; and what levels look like.

The same level is the same colour in every picture.
"""

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, to_hex
from matplotlib.figure import Figure

from grpo_core.sweep.display import knob_name, knob_title, level_name, with_half_width
from grpo_core.sweep.statistics.effects import MAX_LEVELS, Comparison, arm_points, mean_and_half_width
from grpo_core.sweep.statistics.findings import Findings
from grpo_core.sweep.statistics.runs import Level, SweepRuns, balanced_means, is_number

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8b5a2b")
"""Okabe and Ito's colours, which people with any kind of colour vision can tell apart, dark ones first."""
LOG_FROM = 100
"""An axis is logarithmic if its values span more than this factor."""


class Colours:
    """A colour per level of a knob: distinct ones for few levels, a scale for a continuous range."""

    def __init__(self, sweep: SweepRuns, knob: str | None) -> None:
        """Assign colours to the levels of a knob; one colour for all without a knob."""
        levels = sweep.levels(knob) if knob else []
        self.knob = knob
        self.levels = levels if len(levels) <= MAX_LEVELS else []
        numbers = [float(level) for level in levels if is_number(level)] if not self.levels else []
        norm = LogNorm if numbers and spans_decades(numbers) else Normalize
        self.scale = mpl.cm.ScalarMappable(norm(min(numbers), max(numbers)), mpl.colormaps["viridis"]) if numbers else None

    def of(self, level: Level) -> str:
        """Return the colour of a level; grey where the scale has no place for it."""
        if self.levels:
            return PALETTE[self.levels.index(level)]
        if self.scale is not None and is_number(level):
            return to_hex(self.scale.to_rgba(np.asarray([float(level)]))[0])
        return "#777777" if self.knob else PALETTE[0]


def spans_decades(values: Sequence[float]) -> bool:
    """Return whether a logarithmic axis suits the values: all above 0, the largest over 100 times the smallest."""
    return min(values) > 0 and max(values) / min(values) > LOG_FROM


def effect_figure(findings: Findings, knob: str) -> Figure:
    """Return the effect of one knob on the objective.

    Left: each seed a thin line through the means of the levels, their mean thick, 95 % intervals over seeds. Right: the paired
    differences between levels with their 95 % intervals, thick each for itself, thin all at once. A sampled knob is scattered.
    """
    if findings.effects["objective"].association(knob) is not None:
        return _scatter(findings.sweep, knob)
    contrasts = findings.effects["objective"].of(knob)
    figure = Figure(figsize=(9, max(3.4, 1.4 + 0.34 * len(contrasts))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    _levels_panel(left, findings.sweep, knob)
    _differences_panel(right, contrasts)
    return figure


def heat_figure(sweep: SweepRuns, rows: str, columns: str) -> Figure:
    """Return the mean objective by the levels of two knobs, over all else, +- half its 95 % interval over seeds."""
    down, across = sweep.levels(rows), sweep.levels(columns)
    found = balanced_means(sweep, (rows, columns))
    cells = [[mean_and_half_width(found.get((one, other), {}).values()) for other in across] for one in down]
    means = np.array([[mean for mean, _ in row] for row in cells])
    figure = Figure(figsize=(2.2 + 1.15 * len(across), 1.5 + 0.62 * len(down)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(means, cmap="cividis", aspect="auto")
    axes.set_xticks(range(len(across)), [level_name(columns, level) for level in across])
    axes.set_yticks(range(len(down)), [level_name(rows, level) for level in down])
    axes.set(xlabel=knob_title(columns), ylabel=knob_name(rows))
    low, high = np.nanmin(means), np.nanmax(means)
    for y, row in enumerate(cells):
        for x, (mean, half) in enumerate(row):
            dark = not math.isnan(mean) and mean < low + 0.55 * (high - low)
            text = "none" if math.isnan(mean) else with_half_width(mean, half, "\n")
            axes.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
    figure.colorbar(image, label="mean objective")
    return figure


def _levels_panel(axes: Axes, sweep: SweepRuns, knob: str) -> None:
    levels, found = sweep.levels(knob), balanced_means(sweep, (knob,))
    for index, seed in enumerate(sorted({seed for means in found.values() for seed in means})):
        line = [found[(level,)].get(seed, math.nan) for level in levels]
        axes.plot(line, color="0.6", linewidth=1, marker=".", markersize=4, zorder=1, label=None if index else "a seed")
    means, halves = zip(*(mean_and_half_width(found[(level,)].values()) for level in levels), strict=True)
    axes.errorbar(
        range(len(levels)),
        means,
        yerr=halves,
        color=PALETTE[0],
        linewidth=2.5,
        marker="o",
        capsize=4,
        zorder=2,
        label="mean, 95 %",
    )
    axes.set_xticks(range(len(levels)), [level_name(knob, level) for level in levels])
    axes.margins(x=0.12, y=0.2)
    axes.set(xlabel=knob_title(knob), ylabel="objective")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper center", ncols=2)


def _differences_panel(axes: Axes, contrasts: Sequence[Comparison]) -> None:
    for place, found in enumerate(contrasts):
        estimate, colour = found.estimate, PALETTE[1] if found.is_claim else "0.35"
        if not math.isnan(found.simultaneous_interval[0]):
            axes.plot(found.simultaneous_interval, [place, place], color=colour, linewidth=1)
        if not math.isnan(estimate.low):
            axes.plot([estimate.low, estimate.high], [place, place], color=colour, linewidth=4, solid_capstyle="butt")
        axes.plot(estimate.mean, place, "o", color=colour, markeredgecolor="white", markersize=8)
    axes.axvline(0, color="0.2", linewidth=1)
    axes.set_yticks(range(len(contrasts)), [found.name for found in contrasts])
    axes.set(ylim=(len(contrasts) - 0.4, -0.6), xlabel="paired difference in the objective")
    axes.grid(alpha=0.3, axis="x")
    # The intervals that hold all at once can be tens of times as wide; what matters is near 0 and near the means.
    bounds = [abs(bound) for found in contrasts for bound in (found.estimate.low, found.estimate.high, found.estimate.mean)]
    reach = max((bound for bound in bounds if math.isfinite(bound)), default=0.0)
    if reach:
        axes.set_xlim(-1.35 * reach, 1.35 * reach)


def _scatter(sweep: SweepRuns, knob: str) -> Figure:
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    values = sweep.values("objective")
    numbers = [(float(level), mean) for level, mean in arm_points(sweep, knob, values) if is_number(level)]
    for arm in sweep.arms:
        runs, level = values[arm.number].values(), arm.values[knob]
        if is_number(level):
            axes.scatter([float(level)] * len(runs), list(runs), s=10, color="0.6", linewidths=0)
    if numbers:
        levels, means = zip(*numbers, strict=True)
        axes.scatter(levels, means, s=45, color=PALETTE[0], edgecolors="white", label="mean of an arm")
        if spans_decades(levels):
            axes.set_xscale("log")
        axes.legend(fontsize="small")
    axes.set(xlabel=knob_title(knob), ylabel="objective")
    axes.grid(alpha=0.3)
    return figure
