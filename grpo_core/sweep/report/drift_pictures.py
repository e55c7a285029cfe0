"""Pictures of the drift: reward or accuracy against it, a point a run and an arm; and over steps, with its reference syncs."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo_core.run.curves import AFTER_STEP
from grpo_core.run.figures import scale_kl
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.display import knob_name, knob_title, level_name
from grpo_core.sweep.measures import MEASURES
from grpo_core.sweep.report.pictures import PALETTE, Colours
from grpo_core.sweep.statistics.effects import MAX_LEVELS, mean_and_half_width
from grpo_core.sweep.statistics.findings import check_bound, frontier
from grpo_core.sweep.statistics.runs import Level, SweepRuns, balanced_runs, level_order

MARGIN = 0.3
"""Room around the runs for the intervals of their means, as a share of what the runs span."""
Point = tuple[float, float]
"""Square root of a KL, and what was gained."""
UNKNOWN: Point = (math.nan, math.nan)
LABEL = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
MARK: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 8, "markerfacecoloralt": "white"}
Looks = Mapping[Level, dict[str, str]]
FRONTIERS = {"kl_ref_seq": "current reference", "kl_init_seq": "initial policy"}
MOST_PANELS = 24
"""Arms that get a panel of their own."""
Style = tuple[str, str, Literal["-", "--", ":"]]
"""Label, colour and line of what is drawn."""
CURVES: dict[str, Style] = {
    "kl/ref/drift": ("to the current reference", PALETTE[0], "-"),
    "kl/init/drift": ("to the initial policy", PALETTE[1], "--"),
}
SYNC: Style = ("reference sync", "0.55", ":")
LEVEL_CURVES = {
    "reward/mean": "reward",
    "policy/entropy": "entropy, nats",
    "group/zero_std_frac": "groups with equal rewards, share",
    "completion/tokens/mean": "completion length, tokens",
}


def frontier_figure(sweep: SweepRuns, measure: str = "reward") -> Figure:
    """Return reward or accuracy against the root of the KL, to the current reference and to the initial policy.

    Reward against sqrt(KL) is the view of Gao, Schulman & Hilton 2022 (arXiv:2210.10760). Small: runs; large: means of arms
    ± half of the 95 % interval over seeds; the line joins the arms that no other beats in both, of those within the bound.
    """
    colours, looks = Colours(sweep, next(iter(sweep.facts.knobs), None)), _looks(sweep)
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    panels, over = figure.subplots(1, 2, sharey=True), check_bound(sweep).over
    for axes, (cost, title) in zip(panels, FRONTIERS.items(), strict=True):
        runs = [_root_and_gain(sweep, arm, cost, measure) for arm in sweep.arms]
        means = [_draw_arm(axes, of_arm, _look_of(arm, colours, looks)) for of_arm, arm in zip(runs, sweep.arms, strict=True)]
        best = frontier([UNKNOWN if arm in over else point for arm, point in zip(sweep.arms, means, strict=True)])
        axes.plot(*np.reshape([means[index] for index in best], (-1, 2)).T, color="0.35", linewidth=1.2, zorder=1)
        for place, index in enumerate(best):
            name, offset = str(sweep.arms[index].number), (6, 7) if place % 2 else (6, -15)
            axes.annotate(name, means[index], offset, textcoords="offset points", zorder=4, bbox=LABEL)
        _show_runs(axes, [run for of_arm in runs for run in of_arm])
        axes.set(xlabel=f"√(nats per completion) to the {title}")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(MEASURES[measure].outcome)
    of_colour = {level: {"color": colours.of(level)} for level in colours.levels}
    handles = [
        Line2D([], [], **MARK | {"color": "0.4"} | look, label=f"{knob_name(knob)} {level_name(knob, level)}")
        for knob, of_level in zip(sweep.facts.knobs, (of_colour, *looks), strict=False)
        for level, look in of_level.items()
    ]
    handles.append(Line2D([], [], color="0.35", label="frontier (numbers: arms)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)), fontsize="small")
    if colours.scale is not None:
        figure.colorbar(colours.scale, ax=figure.axes, label=knob_title(colours.knob or ""))
    return figure


def _looks(sweep: SweepRuns) -> list[Looks]:
    """Return level -> look of the second knob (a shape) and the third (a filling); none of one with more levels than looks."""
    shapes = [{"marker": shape} for shape in "osD^vP*X"], [{"fillstyle": fill} for fill in ("full", "none", "bottom")]
    levels = [sweep.levels(knob) for knob in sweep.facts.knobs[1:3]]
    return [
        dict(zip(of_knob, looks, strict=False)) if len(of_knob) <= len(looks) else {}
        for of_knob, looks in zip(levels, shapes, strict=False)
    ]


def _look_of(arm: Arm, colours: Colours, looks: Sequence[Looks]) -> dict[str, Any]:
    first, *others = (*arm.values.values(), None)
    of_others = [of_level.get(level, {}) for level, of_level in zip(others, looks, strict=False)]
    look = {**MARK, "color": colours.of(first), **{key: value for one in of_others for key, value in one.items()}}
    return {**look, "markeredgecolor": look["color"] if "fillstyle" in look and look["fillstyle"] != "full" else "white"}


def _draw_arm(axes: Axes, runs: Sequence[Point], look: Mapping[str, Any]) -> Point:
    """Draw an arm's runs and their mean; return the mean."""
    if not runs:
        return UNKNOWN
    roots, gains = zip(*runs, strict=True)
    (x, x_half), (y, y_half) = mean_and_half_width(roots), mean_and_half_width(gains)
    axes.scatter(roots, gains, s=14, marker=look["marker"], color=look["color"], alpha=0.4, linewidths=0, zorder=2)
    axes.errorbar(x, y, yerr=y_half, xerr=x_half, elinewidth=1, zorder=3, **look)
    return x, y


def _root_and_gain(sweep: SweepRuns, arm: Arm, cost: str, measure: str) -> list[Point]:
    """Return (sqrt(KL), gain) of the runs in which both are known."""
    drift, gain = sweep.values(cost)[arm.number], sweep.values(measure)[arm.number]
    # k1 near 0 may be negative, which has no root.
    return [(math.sqrt(max(drift[seed], 0.0)), gain[seed]) for seed in drift if seed in gain]


def _show_runs(axes: Axes, points: Sequence[Point]) -> None:
    """Set the limits by the runs: with two seeds an interval is 13 standard errors wide and would press all runs together."""
    for values, limits, set_limits in (
        ([x for x, _ in points], axes.get_xlim(), axes.set_xlim),
        ([y for _, y in points], axes.get_ylim(), axes.set_ylim),
    ):
        if values and (span := max(values) - min(values)) > 0:
            set_limits(max(limits[0], min(values) - MARGIN * span), min(limits[1], max(values) + MARGIN * span))


def panels_of(sweep: SweepRuns) -> Mapping[str, list[int]]:
    """Return title -> arms: a panel per arm; where there are too many, one per level of the first knob with few; else one."""
    if len(sweep.arms) <= MOST_PANELS:
        return {f"{arm.number}: {arm.name}": [arm.number] for arm in sweep.arms}
    knob = next((knob for knob in sweep.facts.knobs if 1 < len(sweep.levels(knob)) <= MAX_LEVELS), None)
    panels = defaultdict(list)
    for arm in sorted(sweep.arms, key=lambda arm: level_order(arm.values[knob] if knob else None)):
        panels[f"{knob_name(knob)} {level_name(knob, arm.values[knob])}" if knob else "all arms"].append(arm.number)
    return panels


def kl_curves_figure(sweep: SweepRuns, steps: pandas.DataFrame, syncs: pandas.DataFrame) -> Figure:
    """Return KL per token to the current reference and to the initial policy over steps, a line a run, syncs marked."""
    panels = panels_of(sweep)
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(3.4 * columns if columns > 1 else 7, 1.9 * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, (title, arms) in zip(grid.flat, panels.items(), strict=False):
        _kl_panel(axes, arms, steps, syncs)
        axes.set_title(title, fontsize=9)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes in grid[:, 0]:
        axes.set_ylabel("nats/token")
    for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
        axes.set_xlabel("step")
        axes.tick_params(labelbottom=True)
    keys = [key for key in CURVES if key in steps]
    values = pandas.Series(steps[keys].to_numpy(dtype=float).ravel() if keys else [], dtype=float)
    scale_kl(grid.flat[0], values[np.isfinite(values)].to_numpy())  # for all: they share the axis
    handles = [Line2D([], [], color=colour, linestyle=style, label=label) for label, colour, style in (*CURVES.values(), SYNC)]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize="small")
    return figure


def level_curves_figure(sweep: SweepRuns, steps: pandas.DataFrame, knob: str) -> Figure | None:
    """Return reward, entropy, useless groups and length over steps, the mean of the complete runs at each level of a knob.

    Every step is a mean of the same runs: with those that end early a level would seem to rise where its worst runs are pruned.
    The levels are compared at the same settings of the other knobs, by `balanced_runs`. None where the complete runs hold none
    of the figures or the knob has too many levels.
    """
    run_of_row = pandas.MultiIndex.from_frame(steps[["arm", "seed"]])
    runs = balanced_runs(sweep, [knob])
    steps = steps[run_of_row.isin([run for of_level in runs.values() for run in of_level])]
    keys = [key for key in LEVEL_CURVES if key in steps and steps[key].notna().any()]
    colours = Colours(sweep, knob)
    if not keys or not colours.levels:
        return None
    rows = math.ceil(len(keys) / 2)
    figure = Figure(figsize=(9, 2.5 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, min(2, len(keys)), squeeze=False, sharex=True)
    for axes, key in zip(grid.flat, keys, strict=False):
        for level in colours.levels:
            of_level = steps["arm"].isin([arm for arm, _ in runs[level,]])
            mean = steps[of_level].groupby("step")[key].mean()
            axes.plot(mean.index, mean, color=colours.of(level))
        axes.set(ylabel=LEVEL_CURVES[key], xlabel="step")
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(keys) :]:
        axes.axis("off")
    handles = [
        Line2D([], [], color=colours.of(level), label=f"{knob_name(knob)} {level_name(knob, level)}")
        for level in colours.levels
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(5, len(handles)), fontsize="small")
    return figure


def _kl_panel(axes: Axes, arms: Sequence[int], steps: pandas.DataFrame, syncs: pandas.DataFrame) -> None:
    crowded = len(arms) > 1
    for _, run in steps[steps["arm"].isin(arms)].groupby(["arm", "seed"]):
        for key, (_, colour, style) in CURVES.items():
            if key in run:
                known = run[["step", key]].dropna().sort_values("step")
                axes.plot(known["step"], known[key], style, color=colour, linewidth=1, alpha=0.25 if crowded else 0.75)
    if len(syncs) and not crowded:
        for step in sorted(set(syncs.loc[syncs["arm"].isin(arms), "step"])):
            axes.axvline(step + AFTER_STEP, color=SYNC[1], linestyle=SYNC[2], linewidth=1)
    axes.grid(alpha=0.3)
