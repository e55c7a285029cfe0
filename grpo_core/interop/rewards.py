"""What the reward functions of another system are here: a function with its arguments, another key, or nothing.

A reward without a counterpart is written into the configuration under a name that no function can have, so that `grpo check`
refuses it until somebody writes the function or removes it: a run without one of its rewards would be another run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core.config.names import BUILTIN_REWARDS, is_import_path
from grpo_core.interop.rules import Entry, Settings, mapped


@dataclass(frozen=True, kw_only=True)
class Counterpart:
    """What a reward function of another system is here."""

    fn: str | None = None
    """Of `rewards`; None where another key stands for it, or nothing."""
    args: Mapping[str, Any] = field(default_factory=dict)
    targets: Mapping[str, Any] = field(default_factory=dict)
    """{our key path: value} beside the rewards."""
    remark: str = ""
    """Where it differs, or why there is none."""
    differs: bool = False


def none(why: str) -> Counterpart:
    """Return that a reward has no counterpart, and why."""
    return Counterpart(remark=why, differs=True)


def convert_rewards(
    settings: Settings, weighted: Sequence[tuple[str, float]], find: Callable[[Settings, str, float], Counterpart]
) -> Entry:
    """Return what becomes of a list of reward functions.

    Args:
        settings: of the file.
        weighted: (name there, weight).
        find: from all settings, the name of a reward and its weight to what it is here.
    """
    rewards: list[dict[str, Any]] = []
    targets: dict[str, Any] = {}
    remarks = []
    differs = False
    for name, weight in weighted:
        here = find(settings, name, weight)
        if here.fn is not None and here.fn in (reward["fn"] for reward in rewards):
            here = none(f"{here.fn} is there already, and each function is listed once")
        if here.fn is not None or not here.targets:
            fn = here.fn or f"{name.replace(':', '.')} ({settings.system.name})"
            rewards.append({"fn": fn, "weight": weight, **({"args": dict(here.args)} if here.args else {})})
        targets.update(here.targets)
        differs |= here.differs
        remarks += [f"{name}: {here.remark}"] if here.remark else []
    return mapped({**targets, **({"rewards": rewards} if rewards else {})}, "; ".join(remarks), differs=differs)


def is_missing(fn: str) -> bool:
    """Return whether a name in `rewards` is no function, but what stands for one that is left to write."""
    return fn not in BUILTIN_REWARDS and not is_import_path(fn)


def weighted_names(settings: Settings, names: Sequence[str]) -> list[tuple[str, float]]:
    """Return (name, weight) of each reward.

    Raises:
        ConfigError: there are not as many weights as rewards.
    """
    weights = settings["reward_weights"] or [1.0] * len(names)
    if len(weights) != len(names):
        raise settings.refuse(f"reward_weights: {len(weights)} weights for {len(names)} rewards; give one for each")
    return list(zip(names, weights, strict=True))


def overlong(settings: Settings, limit: int, buffer: int, weight: float) -> Counterpart:
    """Return the soft overlong penalty: here a filter whose limit is the longest completion, with weight 1."""
    is_same = settings["max_completion_length"] == limit and weight == 1
    there = "" if is_same else f"; there below {limit} tokens, with weight {weight:g}"
    return Counterpart(
        targets={"filtering.overlong_buffer_tokens": buffer},
        remark=f"filtering.overlong_buffer_tokens, below rollout.max_completion_tokens with weight 1{there}",
        differs=not is_same,
    )
