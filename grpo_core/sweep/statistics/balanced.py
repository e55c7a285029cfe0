"""Means over the other knobs that compare like with like: of one figure a run, or of curves.

For pictures, only settings of the other knobs enter within a seed that are complete at every combination of the levels asked
for. Where no seed has such a setting, every complete run enters.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from grpo_core.sweep.statistics.runs import Levels, Settings, SweepRuns

Key = TypeVar("Key", bound=Hashable)
Values = Mapping[int, Mapping[int, float]]
"""arm -> seed -> figure, as `SweepRuns.values` returns it."""
Cells = Sequence[Mapping[Levels, float]]
"""For each setting of the other knobs, in one seed: levels of some knobs -> mean."""


def balanced_means(sweep: SweepRuns, knobs: Sequence[str], outcome: str = "objective") -> dict[Levels, dict[int, float]]:
    """Return levels of some knobs -> seed -> mean of an outcome over the other knobs."""
    values = sweep.values(outcome)
    found: dict[Levels, dict[int, float]] = {key: {} for key in _keys(sweep, knobs)}
    for seed, settings in _balanced(sweep, knobs, values).items():
        means = [cell_means(arms, values, seed) for arms in settings]
        for key, of_key in found.items():
            if known := [of_setting[key] for of_setting in means if key in of_setting]:
                of_key[seed] = mean(known)
    return found


def balanced_runs(sweep: SweepRuns, knobs: Sequence[str]) -> dict[Levels, list[tuple[int, int]]]:
    """Return levels of some knobs -> (arm, seed) of the runs whose mean compares like with like."""
    balanced = _balanced(sweep, knobs, sweep.values("objective"))
    return {
        key: [(arm, seed) for seed, settings in balanced.items() for arms in settings for arm in arms.get(key, ())]
        for key in _keys(sweep, knobs)
    }


def cells_by_seed(settings: Settings, values: Values) -> list[Cells]:
    """Return the mean of each cell's arms, seed by seed; cells of which no arm is known are left out."""
    seeds = sorted({seed for of_arm in values.values() for seed in of_arm})
    return [[cell_means(arms, values, seed) for arms in settings] for seed in seeds]


def matched(by_seed: Iterable[Cells], keys: Sequence[Levels]) -> list[list[tuple[float, ...]]]:
    """Return, for each seed with any, the figures of some cells at each setting of the other knobs that holds all of them."""
    found = [[tuple(cell[key] for key in keys) for cell in cells if all(key in cell for key in keys)] for cells in by_seed]
    return [of_seed for of_seed in found if of_seed]


def cell_means(arms: Mapping[Key, Sequence[int]], values: Values, seed: int) -> dict[Key, float]:
    """Return the mean of each cell's arms in a seed; cells of which no arm is known are left out."""
    return {key: mean(values[arm][seed] for arm in known) for key, known in _known(arms, values, seed).items()}


def mean(values: Iterable[float]) -> float:
    """Return the mean; NaN of nothing."""
    array = np.fromiter(values, dtype=float)
    return float(array.mean()) if len(array) else math.nan


def _keys(sweep: SweepRuns, knobs: Sequence[str]) -> list[Levels]:
    return list(dict.fromkeys(tuple(arm.values[knob] for knob in knobs) for arm in sweep.arms))


def _balanced(sweep: SweepRuns, knobs: Sequence[str], values: Values) -> dict[int, list[dict[Levels, list[int]]]]:
    """Return seed -> settings of the other knobs that enter, each as levels -> arms."""
    settings, count = sweep.settings(knobs), len(_keys(sweep, knobs))
    seeds = sorted({seed for found in values.values() for seed in found})
    by_seed = {seed: [_known(cells, values, seed) for cells in settings] for seed in seeds}
    complete = {seed: [cells for cells in settings if len(cells) == count] for seed, settings in by_seed.items()}
    return complete if any(complete.values()) else by_seed


def _known(arms: Mapping[Key, Sequence[int]], values: Values, seed: int) -> dict[Key, list[int]]:
    known = {key: [arm for arm in numbers if seed in values[arm]] for key, numbers in arms.items()}
    return {key: found for key, found in known.items() if found}
