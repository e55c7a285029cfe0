"""Means over the other knobs that compare like with like, for pictures: of one figure a run, or of curves.

Within a seed only settings of the other knobs enter that are complete at every combination of the levels asked for. Where no
seed has such a setting, every complete run enters.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from grpo_core.sweep.statistics.facts import Level
from grpo_core.sweep.statistics.runs import SweepRuns

Levels = tuple[Level, ...]
Key = TypeVar("Key", bound=Hashable)
Values = Mapping[int, Mapping[int, float]]
"""arm -> seed -> figure, as `SweepRuns.values` returns it."""


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
    found: dict[Levels, list[tuple[int, int]]] = {key: [] for key in _keys(sweep, knobs)}
    for seed, settings in _balanced(sweep, knobs, sweep.values("objective")).items():
        for arms in settings:
            for key, numbers in arms.items():
                found[key] += [(arm, seed) for arm in numbers]
    return found


def cell_means(arms: Mapping[Key, Sequence[int]], values: Values, seed: int) -> dict[Key, float]:
    """Return the mean of each cell's arms in a seed; cells of which no arm is known are left out."""
    return {key: mean(values[arm][seed] for arm in known) for key, known in _known(arms, values, seed).items()}


def mean(values: Iterable[float]) -> float:
    """Return the mean; NaN of nothing."""
    array = np.fromiter(values, dtype=float)
    return float(array.mean()) if len(array) else math.nan


def _keys(sweep: SweepRuns, knobs: Sequence[str]) -> list[Levels]:
    indices = [sweep.facts.knobs.index(knob) for knob in knobs]
    return list(dict.fromkeys(tuple(arm.levels[index] for index in indices) for arm in sweep.arms))


def _balanced(sweep: SweepRuns, knobs: Sequence[str], values: Values) -> dict[int, list[dict[Levels, list[int]]]]:
    """Return seed -> settings of the other knobs that enter, each as levels -> arms."""
    indices = [sweep.facts.knobs.index(knob) for knob in knobs]
    rest: dict[Levels, dict[Levels, list[int]]] = {}
    for arm in sweep.arms:
        others = tuple(level for index, level in enumerate(arm.levels) if index not in indices)
        rest.setdefault(others, {}).setdefault(tuple(arm.levels[index] for index in indices), []).append(arm.number)
    count = len(_keys(sweep, knobs))
    seeds = sorted({seed for found in values.values() for seed in found})
    by_seed = {seed: [_known(cells, values, seed) for cells in rest.values()] for seed in seeds}
    matched = {seed: [cells for cells in settings if len(cells) == count] for seed, settings in by_seed.items()}
    return matched if any(matched.values()) else by_seed


def _known(arms: Mapping[Key, Sequence[int]], values: Values, seed: int) -> dict[Key, list[int]]:
    known = {key: [arm for arm in numbers if seed in values[arm]] for key, numbers in arms.items()}
    return {key: found for key, found in known.items() if found}
