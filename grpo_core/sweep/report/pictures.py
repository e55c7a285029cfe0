"""The five pictures of a report: effects of a knob, two knobs, reward against drift, the drift and other figures over steps.

The same level is the same colour in every picture.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo_core.pages import STYLE
from grpo_core.run.curves import AFTER_STEP
from grpo_core.run.figures import panel_grid, scale_kl
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.display import MEASURES, cut, knob_name, knob_title, level_name, with_half_width
from grpo_core.sweep.statistics.effects import MAX_LEVELS, Difference, mean_and_half_width
from grpo_core.sweep.statistics.findings import Findings, frontier
from grpo_core.sweep.statistics.runs import Level, SweepRuns, balanced, balanced_means

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8b5a2b")
"""Okabe and Ito's colours, which people with any kind of colour vision can tell apart, dark ones first."""
MARKERS, FILLINGS = "osD^vP*X", ("full", "none", "bottom")
MOST_PANELS = 24
"""Arms that get a panel of their own."""
MARK: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 8, "markerfacecoloralt": "white"}
LABEL = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
Looks = Mapping[str, Mapping[Level, dict[str, str]]]
"""Knob -> level -> how a marker shows it."""
KL_LOOKS: dict[str, dict[str, Any]] = {
    "kl/ref/drift": {"label": "to the current reference", "color": PALETTE[0]},
    "kl/init/drift": {"label": "to the initial policy", "color": PALETTE[1], "linestyle": "--"},
}
SYNC_LOOK: dict[str, Any] = {"label": "reference sync", "color": "0.55", "linestyle": ":"}
LEVEL_CURVES = {
    "reward/mean": "reward",
    "policy/entropy": "entropy, nats",
    "group/zero_std_frac": "groups with equal rewards, share",
    "completion/tokens/mean": "completion length, tokens",
}


def colours(sweep: SweepRuns, knob: str) -> dict[Level, str]:
    """Return the colour of each level of a knob: distinct ones for a few levels, a scale over their order for many."""
    levels = sweep.levels(knob)
    if len(levels) <= MAX_LEVELS:
        return dict(zip(levels, PALETTE, strict=False))
    scale = mpl.colormaps["viridis"](np.linspace(0, 0.95, len(levels)))
    return {level: to_hex(colour) for level, colour in zip(levels, scale, strict=True)}


# Effects of knobs


@mpl.rc_context(STYLE)
def effect_figure(findings: Findings, knob: str) -> Figure:
    """Return the effect of one knob on the objective.

    Left: each seed a thin line through the means of the levels, their mean thick, 95 % intervals over seeds. Right: the paired
    differences between levels with their 95 % intervals, thick each for itself, thin all at once. A sampled knob is scattered.
    """
    if knob in findings.associations("objective"):
        return _scatter(findings.sweep, knob)
    contrasts = findings.contrasts("objective", knob)
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
    for (y, x), mean in np.ndenumerate(means):
        text = "none" if math.isnan(mean) else with_half_width(*cells[y][x], "\n")
        colour = "white" if mean < low + 0.55 * (high - low) else "black"
        axes.text(x, y, text, ha="center", va="center", fontsize=9, color=colour)
    figure.colorbar(image, label="mean objective")
    return figure


def _levels_panel(axes: Axes, sweep: SweepRuns, knob: str) -> None:
    levels, found = sweep.levels(knob), balanced_means(sweep, (knob,))
    by_seed = pandas.DataFrame([found[level,] for level in levels])  # a row a level, a column a seed
    labels = ["a seed", *["_"] * (by_seed.shape[1] - 1)]
    axes.plot(by_seed.to_numpy(), color="0.6", linewidth=1, marker=".", markersize=4, zorder=1, label=labels)
    means, halves = zip(*(mean_and_half_width(found[level,].values()) for level in levels), strict=True)
    bar: dict[str, Any] = {"color": PALETTE[0], "linewidth": 2.5, "marker": "o", "capsize": 4, "zorder": 2}
    axes.errorbar(range(len(levels)), means, yerr=halves, label="mean, 95 %", **bar)
    axes.set_xticks(range(len(levels)), [level_name(knob, level) for level in levels])
    axes.margins(x=0.12, y=0.2)
    axes.set(xlabel=knob_title(knob), ylabel="objective")
    axes.legend(loc="upper center", ncols=2)


def _differences_panel(axes: Axes, contrasts: Sequence[Difference]) -> None:
    for place, found in enumerate(contrasts):
        estimate, colour = found.estimate, PALETTE[1] if found.is_claim else "0.35"
        axes.plot(found.simultaneous_interval, [place, place], color=colour, linewidth=1)  # what is NaN is not drawn
        axes.plot([estimate.low, estimate.high], [place, place], color=colour, linewidth=4, solid_capstyle="butt")
        axes.plot(estimate.mean, place, "o", color=colour, markeredgecolor="white", markersize=8)
    axes.axvline(0, color="0.2", linewidth=1)
    axes.set_yticks(range(len(contrasts)), [cut(found.name, 40) for found in contrasts])
    axes.set(ylim=(len(contrasts) - 0.4, -0.6), xlabel="paired difference in the objective")
    axes.grid(visible=False, axis="y")
    # The intervals that hold all at once can be tens of times as wide; what matters is near 0 and near the means.
    bounds = [abs(bound) for found in contrasts for bound in (found.estimate.low, found.estimate.high, found.estimate.mean)]
    reach = max((bound for bound in bounds if math.isfinite(bound)), default=0.0)
    if reach:
        axes.set_xlim(-1.35 * reach, 1.35 * reach)
    axes.locator_params(axis="x", nbins=5)  # labels of small effects are long


def _scatter(sweep: SweepRuns, knob: str) -> Figure:
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    runs = sweep.complete.assign(level=pandas.to_numeric(sweep.complete[knob], errors="coerce")).dropna(subset="level")
    arms = runs.groupby("arm")[["level", "objective"]].mean()
    axes.plot(runs["level"], runs["objective"], ".", color="0.6", markersize=5)
    axes.plot(arms["level"], arms["objective"], "o", color=PALETTE[0], markeredgecolor="white", label="mean of an arm")
    if 0 < 100 * arms["level"].min() < arms["level"].max():
        axes.set_xscale("log")
    axes.legend()
    axes.set(xlabel=knob_title(knob), ylabel="objective")
    return figure


# Reward against drift


@mpl.rc_context(STYLE)
def frontier_figure(sweep: SweepRuns, measure: str = "reward") -> Figure:
    """Return reward or accuracy against the root of the KL, to the current reference and to the initial policy.

    Reward against sqrt(KL) is the view of Gao, Schulman & Hilton 2022 (arXiv:2210.10760). Small: runs; large: means of arms
    ± half of the 95 % interval over seeds; the line joins the arms that no other beats in both, of those within the bound.
    """
    looks = _looks(sweep)
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    costs = {"kl_ref_seq": "current reference", "kl_init_seq": "initial policy"}
    for axes, (cost, title) in zip(panels, costs.items(), strict=True):
        means = _draw_arms(axes, sweep, cost, measure, looks)
        known = zip(sweep.arms, means, strict=True)
        best = frontier([(math.nan, math.nan) if arm in sweep.over else mean for arm, mean in known])
        axes.plot(*np.reshape([means[index] for index in best], (-1, 2)).T, color="0.35", linewidth=1.2, zorder=1)
        for place, index in enumerate(best):
            name, offset = str(sweep.arms[index].number), (6, 7) if place % 2 else (6, -15)
            axes.annotate(name, means[index], offset, textcoords="offset points", zorder=4, bbox=LABEL)
        axes.set(xlabel=f"√(nats per completion) to the {title}")
    panels[0].set_ylabel(MEASURES[measure].outcome)
    shown = {knob: list(of_level.items()) for knob, of_level in looks.items()}
    handles = [
        Line2D([], [], **MARK | {"color": "0.4"} | look, label=f"{knob_name(knob)} {level_name(knob, level)}")
        for knob, known in shown.items()
        for level, look in (known if len(known) <= MAX_LEVELS else [known[0], known[-1]])  # the ends of a scale of colours
    ]
    handles.append(Line2D([], [], color="0.35", label="frontier (numbers: arms)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)))
    return figure


def _looks(sweep: SweepRuns) -> Looks:
    """Return the first knob's levels as colours, the second's as shapes and the third's as fillings, where there are enough."""
    found: dict[str, dict[Level, dict[str, str]]] = {}
    kinds = {"color": (), "marker": MARKERS, "fillstyle": FILLINGS}
    for knob, (look, values) in zip(sweep.config.knobs, kinds.items(), strict=False):
        levels = sweep.levels(knob)
        of_level = colours(sweep, knob) if look == "color" else dict(zip(levels, values, strict=False))
        found[knob] = {level: {look: value} for level, value in of_level.items()} if len(of_level) == len(levels) else {}
    return found


def _draw_arms(axes: Axes, sweep: SweepRuns, cost: str, measure: str, looks: Looks) -> list[tuple[float, float]]:
    """Draw the runs and the mean of each arm at (sqrt(KL), gain); return the means, NaN where nothing is known."""
    points, drawn, means = [], [_look_of(arm, looks) for arm in sweep.arms], []
    for arm in sweep.arms:  # runs in which both are known; k1 near 0 may be negative
        drift, gain = sweep.values[cost][arm.number], sweep.values[measure][arm.number]
        known = [(math.sqrt(max(drift[seed], 0.0)), gain[seed]) for seed in drift if seed in gain]
        points.append(([root for root, _ in known], [reached for _, reached in known]))
    axes.margins(0.3)
    for of_arm, look in zip(points, drawn, strict=True):
        axes.scatter(*of_arm, s=14, marker=look["marker"], color=look["color"], alpha=0.4, linewidths=0, zorder=2)
    axes.autoscale(enable=False)  # with two seeds an interval is 13 standard errors wide and would press all runs together
    for of_arm, look in zip(points, drawn, strict=True):
        (x, x_half), (y, y_half) = map(mean_and_half_width, of_arm)
        axes.errorbar(x, y, yerr=y_half, xerr=x_half, elinewidth=1, zorder=3, **look)
        means.append((x, y))
    return means


def _look_of(arm: Arm, looks: Looks) -> dict[str, Any]:
    look = MARK | {"color": PALETTE[0], "markeredgecolor": "white"}
    for knob, of_level in looks.items():
        look |= of_level.get(arm.values[knob], {})
    return look | ({"markeredgecolor": look["color"]} if look.get("fillstyle", "full") != "full" else {})


# Over steps


@mpl.rc_context(STYLE)
def kl_curves_figure(sweep: SweepRuns) -> Figure:
    """Return KL per token to the current reference and to the initial policy over steps, a line a run, syncs marked."""
    panels, steps, syncs = panels_of(sweep), sweep.steps, sweep.syncs
    columns = min(3, len(panels))
    figure, grid = panel_grid(len(panels), columns, (3.4 if columns > 1 else 7, 1.9), 0.9, sharex=True, sharey=True)
    for axes, (title, arms) in zip(grid, panels.items(), strict=True):
        for _, run in steps[steps["arm"].isin(arms)].groupby(["arm", "seed"]):
            for key, look in KL_LOOKS.items():
                known = run.reindex(columns=["step", key]).dropna().sort_values("step")
                axes.plot(known["step"], known[key], linewidth=1, alpha=0.25 if len(arms) > 1 else 0.75, **look)
        for step in sorted(set(syncs.loc[syncs["arm"].isin(arms), "step"])) if len(syncs) and len(arms) == 1 else ():
            axes.axvline(step + AFTER_STEP, linewidth=1, **SYNC_LOOK)
        axes.set_title(title, fontsize=9)
    figure.supxlabel("step", fontsize="medium")
    figure.supylabel("nats per token", fontsize="medium")
    values = steps.reindex(columns=list(KL_LOOKS)).to_numpy(dtype=float)
    scale_kl(grid[0], values[np.isfinite(values)])  # for all: they share the axis
    handles = [Line2D([], [], **look) for look in (*KL_LOOKS.values(), SYNC_LOOK)]
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


def panels_of(sweep: SweepRuns) -> Mapping[str, list[int]]:
    """Return title -> arms: a panel per arm; where there are too many, one per level of the first knob with few; else one."""
    if len(sweep.arms) <= MOST_PANELS:
        return {f"{arm.number}: {arm.name}": [arm.number] for arm in sweep.arms}
    knob = next((knob for knob in sweep.varied if len(sweep.levels(knob)) <= MAX_LEVELS), None)
    if knob is None:
        return {"all arms": [arm.number for arm in sweep.arms]}
    return {
        f"{knob_name(knob)} {level_name(knob, level)}": [arm.number for arm in sweep.arms if arm.values[knob] == level]
        for level in sweep.levels(knob)
    }


@mpl.rc_context(STYLE)
def level_curves_figure(sweep: SweepRuns, knob: str) -> Figure | None:
    """Return reward, entropy, useless groups and length over steps, the mean of the complete runs at each level of a knob.

    Every step is a mean of the same runs: with those that end early a level would seem to rise where its worst runs are pruned.
    The levels are compared at the same settings of the other knobs, by `balanced`. None where the complete runs hold none of
    the figures or the knob has too many levels.
    """
    of_level, keys = colours(sweep, knob), [(arm, seed) for arm, seed in sweep.steps[["arm", "seed"]].itertuples(index=False)]
    tables = {}
    for (level,), by_seed in balanced(sweep, [knob]).items():
        runs = {(arm, seed) for seed, settings in by_seed.items() for arms in settings for arm in arms}
        tables[level] = sweep.steps[[key in runs for key in keys]]
    shown = [key for key in LEVEL_CURVES if key in sweep.steps and any(one[key].notna().any() for one in tables.values())]
    if not shown or len(of_level) > MAX_LEVELS:
        return None
    columns = min(2, len(shown))
    figure, grid = panel_grid(len(shown), columns, (9 / columns, 2.5), sharex=True)
    for axes, key in zip(grid, shown, strict=True):
        for level, colour in of_level.items():
            axes.plot(tables[level].groupby("step")[key].mean(), color=colour)
        axes.set(ylabel=LEVEL_CURVES[key], xlabel="step")
    handles = [
        Line2D([], [], color=colour, label=f"{knob_name(knob)} {level_name(knob, level)}") for level, colour in of_level.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(5, len(handles)))
    return figure
