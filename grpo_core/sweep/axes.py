"""Axes: which values a key takes, written out or as the ends of a range."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_core.errors import ConfigError, shown
from grpo_core.sweep.schema import Range, SweepConfig

WRITTEN_OUT = 64
"""A range of at most so many steps is checked at every one of them, a longer one at its ends."""
MOST_ARMS = 2000
"""Combinations that a plan may have: each is a configuration to check, and a grid runs them all."""

Values = Mapping[str, Any]
"""What one arm sets: {key.path: value}."""


def check_axes(sweep: SweepConfig) -> None:
    """Refuse axes that vary nothing, vary something twice, or vary what the sweep itself sets.

    Raises:
        ConfigError: names the axis and the values.
    """
    for key, axis in sweep.axes.items():
        if key in ("training.seed", "rollout", "training") or key.split(".")[0] == "tracking":
            raise ConfigError(f"axes.{key}: is set by the sweep itself; seeds are given as `seeds: [0, 1, 2]`")
        if key in sweep.overrides:
            raise ConfigError(f"axes.{key}: also among overrides ({shown(sweep.overrides[key])}); give it once")
        if isinstance(axis, Range):
            if sweep.sampler == "grid":
                raise ConfigError(f"axes.{key}: a range needs sampler random or tpe, here it is grid; list its values")
            continue
        if len(axis) == 1:
            raise ConfigError(f"axes.{key}: only one value, {shown(axis[0])}, so nothing varies; put it into overrides")
        written = [json.dumps(value) if isinstance(value, str | bool) else repr(_number(value)) for value in axis]
        twice = next((value for value in written if written.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(f"axes.{key}: {twice} is listed {written.count(twice)} times; list it once")


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def count_arms(sweep: SweepConfig) -> int:
    """Return how many arms the sweep has: the size of the grid, or the trials."""
    if sweep.trials is not None:
        return sweep.trials
    return math.prod(len(axis) for axis in sweep.axes.values() if not isinstance(axis, Range))


def grid(sweep: SweepConfig) -> Iterator[dict[str, Any]]:
    """Yield every combination of the axes, the last one varying fastest; of a range, all of its steps or its two ends."""
    choices = [_checked_values(axis) if isinstance(axis, Range) else list(axis) for axis in sweep.axes.values()]
    for combination in itertools.product(*choices):
        yield dict(zip(sweep.axes, combination, strict=True))


def _checked_values(axis: Range) -> list[int | float]:
    step = axis.step if axis.step is not None else (1 if axis.is_whole else None)
    if step is not None and (axis.high - axis.low) / step < WRITTEN_OUT:
        count = int((axis.high - axis.low) / step + 1e-9) + 1
        return [axis.low + index * step for index in range(count)]
    return [axis.low, axis.high]
