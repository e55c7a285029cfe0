"""What a sweep asked, and what its knobs and levels are called in front of people."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from grpo_core.plain_text import visible

Level = float | int | str | bool | None
"""A value of a knob; None where the configuration says null."""

NAMES = {
    "loss.beta": "β",
    "rollout.group_size": "group size",
    "reference.sync_steps": "sync period",
    "reference.mixup_alpha": "mixup α",  # noqa: RUF001
}
"""Knobs that have a name of their own; others go by their dotted key."""

SETTINGS = {
    "loss.beta": "β={}",
    "rollout.group_size": "G={}",
    "reference.sync_steps": "sync {}",
    "reference.mixup_alpha": "α={}",  # noqa: RUF001
}
GROUP_SIZE = "rollout.group_size"
UNITS = {"rollout.group_size": "completions", "reference.sync_steps": "steps"}


@dataclass(frozen=True, kw_only=True)
class SweepFacts:
    """What is known about a sweep besides its runs."""

    name: str
    question: str
    """What the sweep was to find out, in the words of who planned it; may be empty."""
    knobs: tuple[str, ...]
    """Dotted configuration keys, the most interesting first."""
    seeds: tuple[int, ...]
    """Planned seeds; every arm was to run with each."""
    objective: str
    """In words; higher is better."""
    hold: str | None
    """What a sweep over the group size held constant: `prompts`, `completions`, `tokens`, or None."""
    sampler: str
    concurrency: int
    """Runs at the same time."""
    elapsed_seconds: float | None
    """From the first start to the last end."""
    notes: tuple[str, ...]
    """Warnings of the plan, one line each."""
    planned_runs: int | None
    kl_bound: float | None = None
    """Largest mean `drift` that the best arm may have; in the unit of `kl_metric`."""
    kl_metric: str = "kl/init/seq"
    """The metric that the column `drift` of the runs is of their last steps: the mean, or of a probe the last one."""


def as_level(value: Any) -> Level:
    """Return a cell of a frame as a level: NaN is null, numpy scalars are Python's, lists and the like are their text.

    >>> as_level(float("nan")) is None, as_level(10.0), as_level([0.9, 0.99])
    (True, 10.0, '[0.9, 0.99]')
    """
    if value is None or value != value:  # noqa: PLR0124 - NaN, NaT
        return None
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def is_number(level: Level) -> TypeGuard[float]:
    """Return whether a level has a place on an axis."""
    return isinstance(level, (int, float)) and not isinstance(level, bool) and math.isfinite(level)


def level_order(level: Level) -> tuple[int, float, str]:
    """Return a sort key: numbers by size, then text, null last (a reference that never syncs has the longest period)."""
    if is_number(level):
        return 0, float(level), ""
    return (2, 0.0, "") if level is None else (1, 0.0, str(level))


def knob_name(knob: str) -> str:
    """Return what a knob is called in a sentence."""
    return NAMES.get(knob, visible(knob))


def knob_title(knob: str) -> str:
    """Return a knob's name with its key and unit, for headings and axes.

    >>> knob_title("reference.sync_steps")
    'sync period (reference.sync_steps, steps)'
    """
    if knob not in NAMES:
        return visible(knob)
    return f"{NAMES[knob]} ({', '.join([knob, *([UNITS[knob]] if knob in UNITS else [])])})"


def level_name(knob: str, level: Level) -> str:
    """Return what a level is called.

    >>> level_name("reference.sync_steps", None), level_name("loss.beta", 0.04), level_name("loss.beta", 1e-05)
    ('never', '0.04', '1e-05')
    """
    if level is None:
        return "never" if knob == "reference.sync_steps" else "null"
    if isinstance(level, bool):
        return str(level).lower()
    return f"{level:.4g}" if isinstance(level, float) else visible(str(level))


def setting_name(knobs: Sequence[str], levels: Sequence[Level]) -> str:
    """Return one arm in words.

    >>> setting_name(["loss.beta", "rollout.group_size", "reference.sync_steps"], [0.04, 8, None])
    'β=0.04, G=8, sync never'
    """
    pairs = zip(knobs, levels, strict=True)
    return ", ".join(SETTINGS.get(knob, knob + "={}").format(level_name(knob, level)) for knob, level in pairs)
