"""Pictures of what a sweep found: effects of knobs, pairs of knobs, reward against drift."""

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo_core.analysis.sweep.effects import (
    MAX_LEVELS,
    Comparison,
    arm_points,
    level_means,
    mean_and_error,
)
from grpo_core.analysis.sweep.facts import Level, is_number, knob_name, knob_title, level_name, level_order
from grpo_core.analysis.sweep.frontier import frontier
from grpo_core.analysis.sweep.numbers import plain
from grpo_core.analysis.sweep.runs import Arm, SweepRuns
from grpo_core.analysis.sweep.statistics import t_interval
from grpo_core.analysis.sweep.words import Findings

MARKERS = "osD^vP*X"
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
        self.scale = None
        if numbers:
            norm = (LogNorm if spans_decades(numbers) else Normalize)(min(numbers), max(numbers))
            self.scale = mpl.cm.ScalarMappable(norm, mpl.colormaps["viridis"])

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
    height = max(3.4, 1.4 + 0.34 * len(contrasts))
    figure = Figure(figsize=(9, height), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    _levels_panel(left, findings.sweep, knob)
    _differences_panel(right, contrasts)
    return figure


def heat_figure(sweep: SweepRuns, rows: str, columns: str) -> Figure:
    """Return the mean objective by the levels of two knobs, over all else, +- half its 95 % interval over seeds."""
    down, across = sweep.levels(rows), sweep.levels(columns)
    cells = [[_cell(sweep, {rows: one, columns: other}) for other in across] for one in down]
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
            text = "none" if math.isnan(mean) else plain(mean) + ("" if math.isnan(half) else f"\n± {plain(half)}")
            axes.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
    figure.colorbar(image, label="mean objective")
    return figure


def frontier_figure(sweep: SweepRuns, measure: str = "reward") -> Figure:
    """Return reward or accuracy against the root of the KL, to the current reference and to the initial policy.

    Reward against sqrt(KL) is the view of Gao, Schulman & Hilton 2022 (arXiv:2210.10760). Small: runs; large: means of arms
    +- 1 standard error over seeds; the line joins the arms that no other beats in both.
    """
    knobs = sweep.facts.knobs
    colours = Colours(sweep, knobs[0] if knobs else None)
    marks = _marks(sweep, knobs[1] if len(knobs) > 1 else None)
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (cost, title) in zip(panels, FRONTIERS.items(), strict=True):
        points = []
        for arm in sweep.arms:
            first, second = (*arm.levels, None, None)[:2]
            look = {"colour": colours.of(first), "mark": marks.get(second, "o")}
            points.append(_draw_arm(axes, sweep, arm, cost=cost, measure=measure, **look))
        best = frontier(points)
        axes.plot(
            [points[index][0] for index in best], [points[index][1] for index in best], color="0.35", linewidth=1.2, zorder=1
        )
        for index in best:
            axes.annotate(str(sweep.arms[index].number), points[index], xytext=(7, 6), textcoords="offset points", fontsize=9)
        axes.set(xlabel=f"√(nats per completion) to the {title}")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(MEASURE_NAMES[measure])
    _legend(figure, sweep, colours, marks)
    return figure


FRONTIERS = {"kl_ref_seq": "current reference", "kl_init_seq": "initial policy"}
MEASURE_NAMES = {"reward": "reward, last steps", "accuracy": "held-out accuracy", "objective": "objective"}


def frontier_arms(sweep: SweepRuns, measure: str, cost: str) -> list[Arm]:
    """Return the arms on the frontier of a measure against sqrt(KL), by rising drift."""
    points = [_means(sweep, arm, cost, measure)[:2] for arm in sweep.arms]
    return [sweep.arms[index] for index in frontier([(x, y) for x, y in points])]


def _means(sweep: SweepRuns, arm: Arm, cost: str, measure: str) -> tuple[float, float, float, float]:
    """Return the means over seeds of sqrt(KL) and the measure, and their standard errors, of runs in which both are known."""
    points = _root_and_gain(sweep, arm, cost, measure)
    x, x_error = mean_and_error(root for root, _ in points)
    y, y_error = mean_and_error(gain for _, gain in points)
    return x, y, x_error, y_error


def _draw_arm(
    axes: Axes, sweep: SweepRuns, arm: Arm, *, cost: str, measure: str, colour: str, mark: str
) -> tuple[float, float]:
    x, y, x_error, y_error = _means(sweep, arm, cost, measure)
    if math.isnan(x):
        return x, y
    roots, gains = zip(*_root_and_gain(sweep, arm, cost, measure), strict=True)
    axes.scatter(roots, gains, s=14, marker=mark, color=colour, alpha=0.4, linewidths=0, zorder=2)
    look = {"markersize": 8, "markeredgecolor": "white", "elinewidth": 1}
    axes.errorbar(x, y, yerr=_known(y_error), xerr=_known(x_error), fmt=mark, color=colour, zorder=3, **look)  # type: ignore[arg-type]
    return x, y


def _root_and_gain(sweep: SweepRuns, arm: Arm, cost: str, measure: str) -> list[tuple[float, float]]:
    """Return (sqrt(KL), gain) of the runs in which both are known."""
    drift, gain = sweep.values(cost)[arm.number], sweep.values(measure)[arm.number]
    # k3 has no negative terms; a mean below 0 is rounding.
    return [(math.sqrt(max(drift[seed], 0.0)), gain[seed]) for seed in drift if seed in gain]


def _levels_panel(axes: Axes, sweep: SweepRuns, knob: str) -> None:
    table = level_means(sweep, knob)
    places = np.arange(len(table.columns))
    for seed, row in table.iterrows():
        axes.plot(
            places,
            row,
            color="0.6",
            linewidth=1,
            marker=".",
            markersize=4,
            zorder=1,
            label="a seed" if seed == table.index[0] else None,
        )
    means = table.mean()
    halves = [_half_width([value for value in table[column] if math.isfinite(value)]) for column in table]
    axes.errorbar(
        places, means, yerr=halves, color=PALETTE[0], linewidth=2.5, marker="o", capsize=4, zorder=2, label="mean, 95 %"
    )
    axes.set_xticks(places, list(table.columns))
    axes.margins(x=0.12)
    axes.set(xlabel=knob_title(knob), ylabel="objective")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _differences_panel(axes: Axes, contrasts: Sequence[Comparison]) -> None:
    names = []
    for place, found in enumerate(contrasts):
        estimate, colour = found.estimate, PALETTE[1] if found.is_claim else "0.35"
        if not math.isnan(found.together_low):
            axes.plot([found.together_low, found.together_high], [place, place], color=colour, linewidth=1)
        if not math.isnan(estimate.low):
            axes.plot([estimate.low, estimate.high], [place, place], color=colour, linewidth=4, solid_capstyle="butt")
        axes.plot(estimate.mean, place, "o", color=colour, markeredgecolor="white", markersize=8)
        names.append(f"{found.second_name} − {found.first_name}")  # noqa: RUF001 - a minus between two numbers
    axes.axvline(0, color="0.2", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(alpha=0.3, axis="x")
    axes.set_xlabel("paired difference in the objective")
    # The intervals that hold all at once can be tens of times as wide; what matters is near 0 and near the means.
    bounds = [abs(bound) for found in contrasts for bound in (found.estimate.low, found.estimate.high, found.estimate.mean)]
    reach = max((bound for bound in bounds if math.isfinite(bound)), default=0.0)
    if reach:
        axes.set_xlim(-1.35 * reach, 1.35 * reach)


def _scatter(sweep: SweepRuns, knob: str) -> Figure:
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    points = sorted(arm_points(sweep, knob, sweep.values("objective")), key=lambda point: level_order(point[0]))
    numbers = [(float(level), mean) for level, mean in points if is_number(level)]
    index = sweep.facts.knobs.index(knob)
    values = sweep.values("objective")
    for arm in sweep.arms:
        runs, level = values[arm.number].values(), arm.levels[index]
        if is_number(level):
            axes.scatter([float(level)] * len(runs), list(runs), s=10, color="0.6", linewidths=0)
    if numbers:
        axes.scatter(
            [x for x, _ in numbers], [y for _, y in numbers], s=45, color=PALETTE[0], edgecolors="white", label="mean of an arm"
        )
        if spans_decades([level for level, _ in numbers]):
            axes.set_xscale("log")
        axes.legend(fontsize="small")
    axes.set(xlabel=knob_title(knob), ylabel="objective")
    axes.grid(alpha=0.3)
    return figure


def _cell(sweep: SweepRuns, levels: dict[str, Level]) -> tuple[float, float]:
    """Return the mean over seeds of the arms with these levels, and half the width of its interval."""
    indices = {sweep.facts.knobs.index(knob): level for knob, level in levels.items()}
    arms = [arm for arm in sweep.arms if all(arm.levels[index] == level for index, level in indices.items())]
    values = sweep.values("objective")
    seeds = sorted({seed for arm in arms for seed in values[arm.number]})
    means = [float(np.mean([values[arm.number][seed] for arm in arms if seed in values[arm.number]])) for seed in seeds]
    return (float(np.mean(means)), _half_width(means)) if means else (math.nan, math.nan)


def _half_width(values: Sequence[float]) -> float:
    low, high = t_interval(values)
    return (high - low) / 2


def _known(error: float) -> float | None:
    return None if math.isnan(error) else error


def _marks(sweep: SweepRuns, knob: str | None) -> dict[Level, str]:
    levels = sweep.levels(knob) if knob else []
    return dict(zip(levels, MARKERS, strict=False)) if len(levels) <= len(MARKERS) else {}


def _legend(figure: Figure, sweep: SweepRuns, colours: Colours, marks: dict[Level, str]) -> None:
    handles = [
        Line2D(
            [],
            [],
            marker="o",
            linestyle="",
            color=colours.of(level),
            label=f"{knob_name(colours.knob)} {level_name(colours.knob, level)}",
        )
        for level in colours.levels
        if colours.knob
    ]
    handles += [
        Line2D([], [], marker=mark, linestyle="", color="0.4", label=f"{knob_name(knob)} {level_name(knob, level)}")
        for knob in sweep.facts.knobs[1:2]
        for level, mark in marks.items()
    ]
    handles.append(Line2D([], [], color="0.35", label="frontier (numbers: arms)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)), fontsize="small")
    if colours.scale is not None:
        figure.colorbar(colours.scale, ax=figure.axes, label=knob_title(colours.knob or ""))
