"""Reward or accuracy against drift, a point a run and an arm."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo_core.sweep.arms import Arm
from grpo_core.sweep.display import knob_name, knob_title, level_name
from grpo_core.sweep.measures import MEASURES
from grpo_core.sweep.report.colours import FILLS, MARKERS, Colours, Look
from grpo_core.sweep.statistics.effects import mean_and_half_width
from grpo_core.sweep.statistics.findings import check_bound, frontier
from grpo_core.sweep.statistics.runs import Level, SweepRuns

MARGIN = 0.3
"""Room around the runs for the intervals of their means, as a share of what the runs span."""
Point = tuple[float, float]
"""Square root of a KL, and what was gained."""
UNKNOWN: Point = (math.nan, math.nan)
LABEL = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}


def frontier_figure(sweep: SweepRuns, measure: str = "reward") -> Figure:
    """Return reward or accuracy against the root of the KL, to the current reference and to the initial policy.

    Reward against sqrt(KL) is the view of Gao, Schulman & Hilton 2022 (arXiv:2210.10760). Small: runs; large: means of arms
    ± half of the 95 % interval over seeds; the line joins the arms that no other beats in both, of those within the bound.
    """
    knobs = sweep.facts.knobs
    colours = Colours(sweep, knobs[0] if knobs else None)
    marks, fills = (_looks(sweep, place, looks) for place, looks in ((1, MARKERS), (2, FILLS)))
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    over, looks = check_bound(sweep).over, []
    for arm in sweep.arms:
        first, second, third = (*arm.values.values(), None, None, None)[:3]
        looks.append(Look(colour=colours.of(first), mark=marks.get(second, "o"), fill=fills.get(third, "full")))
    for axes, (cost, title) in zip(panels, FRONTIERS.items(), strict=True):
        runs = [_root_and_gain(sweep, arm, cost, measure) for arm in sweep.arms]
        points = [_draw_arm(axes, of_arm, look) for of_arm, look in zip(runs, looks, strict=True)]
        best = frontier([UNKNOWN if arm in over else point for arm, point in zip(sweep.arms, points, strict=True)])
        axes.plot(
            [points[index][0] for index in best], [points[index][1] for index in best], color="0.35", linewidth=1.2, zorder=1
        )
        for place, index in enumerate(best):
            offset = (6, 7) if place % 2 else (6, -15)
            axes.annotate(
                str(sweep.arms[index].number), points[index], offset, textcoords="offset points", zorder=4, bbox=LABEL
            )
        _show_runs(axes, [run for of_arm in runs for run in of_arm])
        axes.set(xlabel=f"√(nats per completion) to the {title}")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(MEASURES[measure].outcome)
    _legend(figure, sweep, colours, marks, fills)
    return figure


FRONTIERS = {"kl_ref_seq": "current reference", "kl_init_seq": "initial policy"}


def _draw_arm(axes: Axes, runs: Sequence[Point], look: Look) -> Point:
    """Draw an arm's runs and their mean; return the mean."""
    if not runs:
        return UNKNOWN
    roots, gains = zip(*runs, strict=True)
    (x, x_half), (y, y_half) = mean_and_half_width(roots), mean_and_half_width(gains)
    axes.scatter(roots, gains, s=14, marker=look.mark, color=look.colour, alpha=0.4, linewidths=0, zorder=2)
    axes.errorbar(x, y, yerr=_known(y_half), xerr=_known(x_half), color=look.colour, elinewidth=1, zorder=2)
    axes.add_line(look.line(x, y, edge="white" if look.fill == "full" else None))
    return x, y


def _root_and_gain(sweep: SweepRuns, arm: Arm, cost: str, measure: str) -> list[Point]:
    """Return (sqrt(KL), gain) of the runs in which both are known."""
    drift, gain = sweep.values(cost)[arm.number], sweep.values(measure)[arm.number]
    # k3 has no negative terms; a mean below 0 is rounding.
    return [(math.sqrt(max(drift[seed], 0.0)), gain[seed]) for seed in drift if seed in gain]


def _known(half: float) -> float | None:
    return None if math.isnan(half) else half


def _show_runs(axes: Axes, points: Sequence[Point]) -> None:
    """Set the limits by the runs: with two seeds an interval is 13 standard errors wide and would press all runs together."""
    for values, limits, set_limits in (
        ([x for x, _ in points], axes.get_xlim(), axes.set_xlim),
        ([y for _, y in points], axes.get_ylim(), axes.set_ylim),
    ):
        if values and (span := max(values) - min(values)) > 0:
            set_limits(max(limits[0], min(values) - MARGIN * span), min(limits[1], max(values) + MARGIN * span))


def _looks(sweep: SweepRuns, place: int, looks: Sequence[str]) -> dict[Level, str]:
    """Return level -> look of the knob at that place; empty where there is none or it has more levels than looks."""
    levels = sweep.levels(sweep.facts.knobs[place]) if place < len(sweep.facts.knobs) else []
    return dict(zip(levels, looks, strict=False)) if len(levels) <= len(looks) else {}


def _legend(figure: Figure, sweep: SweepRuns, colours: Colours, marks: dict[Level, str], fills: dict[Level, str]) -> None:
    looks = [{level: Look(colour=colours.of(level)) for level in colours.levels}]
    looks += [
        {level: Look(mark=mark) for level, mark in marks.items()},
        {level: Look(fill=fill) for level, fill in fills.items()},
    ]
    handles = [
        look.line(label=f"{knob_name(knob)} {level_name(knob, level)}")
        for knob, of_level in zip(sweep.facts.knobs, looks, strict=False)
        for level, look in of_level.items()
    ]
    handles.append(Line2D([], [], color="0.35", label="frontier (numbers: arms)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)), fontsize="small")
    if colours.scale is not None:
        figure.colorbar(colours.scale, ax=figure.axes, label=knob_title(colours.knob or ""))
