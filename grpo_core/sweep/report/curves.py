"""KL over steps with its reference syncs, one panel per arm, or per level where there are many arms."""

import math
from dataclasses import dataclass
from typing import Literal

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo_core.sweep.display import knob_name, level_name
from grpo_core.sweep.report.colours import PALETTE, Colours
from grpo_core.sweep.statistics.balanced import balanced_runs
from grpo_core.sweep.statistics.effects import MAX_LEVELS
from grpo_core.sweep.statistics.runs import SweepRuns, level_order

MOST_PANELS = 24
"""Arms that get a panel of their own."""
Style = tuple[str, str, Literal["-", "--", ":"]]
"""Label, colour and line of what is drawn."""
CURVES: dict[str, Style] = {
    "kl/ref/k3": ("to the current reference (k3)", PALETTE[0], "-"),
    "kl/init/k3": ("to the initial policy (k3)", PALETTE[1], "--"),
}
SYNC: Style = ("reference sync", "0.55", ":")
LEVEL_CURVES = {
    "reward/mean": "reward",
    "policy/entropy": "entropy, nats",
    "group/zero_std_frac": "groups with equal rewards, share",
    "completion/tokens/mean": "completion length, tokens",
}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel and the arms that it shows."""

    title: str
    arms: tuple[int, ...]


def panels_of(sweep: SweepRuns) -> list[Panel]:
    """Return a panel per arm; where there are too many, one per level of the first knob with few levels; else one."""
    if len(sweep.arms) <= MOST_PANELS:
        return [Panel(title=f"{arm.number}: {arm.name}", arms=(arm.number,)) for arm in sweep.arms]
    knob = next((knob for knob in sweep.facts.knobs if 1 < len(sweep.levels(knob)) <= MAX_LEVELS), None)
    by_title: dict[str, list[int]] = {}
    for arm in sorted(sweep.arms, key=lambda arm: level_order(arm.values[knob] if knob else None)):
        title = f"{knob_name(knob)} {level_name(knob, arm.values[knob])}" if knob else "all arms"
        by_title.setdefault(title, []).append(arm.number)
    return [Panel(title=title, arms=tuple(arms)) for title, arms in by_title.items()]


def kl_curves_figure(sweep: SweepRuns, steps: pandas.DataFrame, syncs: pandas.DataFrame) -> Figure:
    """Return KL per token to the current reference and to the initial policy over steps, a line a run, syncs marked."""
    panels = panels_of(sweep)
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(3.4 * columns if columns > 1 else 7, 1.9 * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _kl_panel(axes, panel, steps, syncs)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes in grid[:, 0]:
        axes.set_ylabel("nats/token")
    for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
        axes.set_xlabel("step")
        axes.tick_params(labelbottom=True)
    keys = [key for key in CURVES if key in steps]
    values = pandas.Series(steps[keys].to_numpy(dtype=float).ravel() if keys else [], dtype=float)
    positive = values[values.gt(0) & values.lt(math.inf)]
    if positive.max() > 20 * positive.median():  # a few runs would press all others against the axis
        grid.flat[0].set_yscale("symlog", linthresh=float(positive.median()))
    looks = [*CURVES.values(), SYNC]
    handles = [Line2D([], [], color=colour, linestyle=style, label=label) for label, colour, style in looks]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize="small")
    return figure


def level_curves_figure(sweep: SweepRuns, steps: pandas.DataFrame, knob: str) -> Figure | None:
    """Return reward, entropy, useless groups and length over steps, the mean of the complete runs at each level of a knob.

    Every step is a mean of the same runs: with those that end early a level would seem to rise where its worst runs are pruned.
    The levels are compared at the same settings of the other knobs, as in `balanced.py`. None where the complete runs hold none
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
            arms = {arm for arm, _ in runs[level,]}
            mean = steps[steps["arm"].isin(arms)].groupby("step")[key].mean()
            axes.plot(mean.index, mean, color=colours.of(level))
        axes.set_ylabel(LEVEL_CURVES[key])
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(keys) :]:
        axes.axis("off")
    handles = [
        Line2D([], [], color=colours.of(level), label=f"{knob_name(knob)} {level_name(knob, level)}")
        for level in colours.levels
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(5, len(handles)), fontsize="small")
    return figure


def _kl_panel(axes: Axes, panel: Panel, steps: pandas.DataFrame, syncs: pandas.DataFrame) -> None:
    runs = steps[steps["arm"].isin(panel.arms)]
    crowded = len(panel.arms) > 1
    for _, run in runs.groupby(["arm", "seed"]):
        ordered = run.sort_values("step")
        for key, (_, colour, style) in CURVES.items():
            if key in ordered:
                known = ordered[["step", key]].dropna()
                axes.plot(known["step"], known[key], style, color=colour, linewidth=1, alpha=0.25 if crowded else 0.75)
    if len(syncs) and not crowded:
        # Half a step later: the sync happens after its step and holds from the next one.
        for step in sorted(set(syncs.loc[syncs["arm"].isin(panel.arms), "step"])):
            axes.axvline(step + 0.5, color=SYNC[1], linestyle=SYNC[2], linewidth=1)
    axes.set_title(panel.title, fontsize=9)
    axes.grid(alpha=0.3)
