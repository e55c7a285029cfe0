"""What the charts of a report show, which `charts.html.j2` draws as SVG.

A figure of the first parameter's level has the same colour in every chart of settings.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pandas
from matplotlib.ticker import MaxNLocator

from grpo_core.config.spelling import level_name
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.display import knob_name, knob_title
from grpo_core.sweep.statistics.effects import MAX_LEVELS
from grpo_core.sweep.statistics.runs import Level, SweepRuns, balanced, balanced_means, is_number

COLOURS = 8
"""Of the page's style: c0 to c7."""
CURVES = {
    "reward/mean": "reward",
    "kl/ref/drift": "KL to the current reference, nats a token",
    "kl/init/drift": "KL to the initial policy, nats a token",
    "policy/entropy": "entropy, nats",
    "group/zero_std_frac": "groups with equal rewards, share",
    "completion/tokens/mean": "completion length, tokens",
}


class Axis(NamedTuple):
    """From where to where an axis reaches."""

    low: float
    high: float
    ticks: list[float]

    def at(self, value: float) -> float:
        """Return where a value stands, in percent of the length."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)


def axis(values: Iterable[float], *, is_share: bool = False) -> Axis:
    """Return an axis that holds all values with a margin; that of a share stays inside 0 to 1."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    margin = 0.06 * (max(known) - min(known)) or abs(known[0]) / 10 or 0.1
    low, high = min(known) - margin, max(known) + margin
    low, high = (max(low, 0.0), min(high, 1.0)) if is_share else (low, high)
    ticks = [round(float(tick), 12) for tick in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
    return Axis(low, high, [tick for tick in ticks if low <= tick <= high])


def colours(sweep: SweepRuns, knob: str) -> dict[Level, int]:
    """Return the colour of each level of a parameter."""
    levels = sweep.levels(knob)
    return {level: index * min(COLOURS, len(levels)) // len(levels) for index, level in enumerate(levels)}


def setting_look(sweep: SweepRuns, arm: Arm) -> dict[str, Any]:
    """Return name and colour of a setting, its colour being that of its level of the first parameter."""
    colour = 0 if not sweep.varied else colours(sweep, sweep.varied[0])[arm.values[sweep.varied[0]]]
    return {"name": arm.name, "colour": colour}


def level_rows(sweep: SweepRuns, knob: str) -> list[dict[str, Any]]:
    """Return the objective by seed at each level of a parameter, the mean over the settings of the others."""
    found = balanced_means(sweep, (knob,))
    return [
        {"name": level_name(knob, level), "colour": colour, "seeds": found[level,]}
        for level, colour in colours(sweep, knob).items()
        if found[level,]
    ]


def drawn_points(sweep: SweepRuns, knob: str) -> tuple[str, list[dict[str, Any]]]:
    """Return what a sampler drew of a parameter: the title of its axis, and settings with their (level, objective)."""
    levels = {arm.number: float(level) for arm in sweep.arms if is_number(level := arm.values[knob])}
    is_log = 0 < 100 * min(levels.values(), default=0.0) < max(levels.values(), default=0.0)
    places = {number: math.log10(level) if is_log else level for number, level in levels.items()}
    points = [
        setting_look(sweep, arm)
        | {"runs": [(places[arm.number], gain) for gain in sweep.values["objective"][arm.number].values()]}
        for arm in sweep.arms
        if arm.number in places
    ]
    return f"log10 of {knob_name(knob)}" if is_log else knob_name(knob), points


def curves(sweep: SweepRuns) -> Iterator[dict[str, Any]]:
    """Yield figures over steps by each parameter with few levels, the mean of its complete runs.

    Every step is a mean of the same runs: with those that end early a level would seem to rise where its worst runs are pruned.
    The levels are compared at the same settings of the other parameters, by `balanced`.
    """
    keys = [] if sweep.steps.empty else [*sweep.steps[["arm", "seed"]].itertuples(index=False, name=None)]
    for knob in (one for one in sweep.varied if keys and len(sweep.levels(one)) <= MAX_LEVELS):
        colour, tables = colours(sweep, knob), dict[int, pandas.DataFrame]()
        for (level,), by_seed in balanced(sweep, [knob]).items():
            runs = {(arm, seed) for seed, settings in by_seed.items() for arms in settings for arm in arms}
            tables[colour[level]] = sweep.steps[[key in runs for key in keys]]
        panels = {title: lines for key, title in CURVES.items() if (lines := _lines(tables, key))}
        names = {f"{knob_name(knob)} {level_name(knob, level)}": one for level, one in colour.items()}
        yield {"name": knob_title(knob), "levels": names, "panels": panels}


def _lines(tables: Mapping[int, pandas.DataFrame], key: str) -> dict[int, list[tuple[float, float]]]:
    means = {colour: table.groupby("step")[key].mean().dropna() for colour, table in tables.items() if key in table}
    return {colour: list(zip(one.index.astype(float), one, strict=True)) for colour, one in means.items() if len(one)}
