"""What the reward functions of another system are here: a function with its arguments, another key, or nothing.

A reward without a counterpart is written into the configuration under a name that no function can have, so that `grpo check`
refuses it until somebody writes the function or removes it: a run without one of its rewards would be another run.
"""

from collections.abc import Callable, Sequence
from typing import Any

from grpo_core.config.names import BUILTIN_REWARDS, is_import_path
from grpo_core.interop.rules import Entry, Settings, mapped, no_counterpart


def convert_rewards(
    settings: Settings, weighted: Sequence[tuple[str, float]], find: Callable[[Settings, str, float], Entry]
) -> Entry:
    """Return what becomes of a list of reward functions.

    Args:
        settings: of the file.
        weighted: (name there, weight).
        find: from all settings, the name of a reward and its weight to what becomes of it: `rewards` without the weight,
            another key of ours, or nothing.
    """
    rewards: list[dict[str, Any]] = []
    targets: dict[str, Any] = {}
    found = []
    for name, weight in weighted:
        here = find(settings, name, weight)
        if any(item in (reward["fn"] for reward in rewards) for item in _functions(here)):
            here = no_counterpart("its counterpart is there already, and each function is listed once", differs=True)
        missing = [] if here.targets else [{"fn": f"{name.replace(':', '.')} ({settings.system.name})"}]
        rewards += [{"fn": item["fn"], "weight": weight, **item} for item in here.targets.get("rewards", missing)]
        targets.update(here.targets)
        found.append((name, here))
    remark = "; ".join(f"{name}: {here.remark}" for name, here in found if here.remark)
    listed = {"rewards": rewards} if rewards else {}
    return mapped({**targets, **listed}, remark, differs=any(here.differs for _, here in found))


def _functions(found: Entry) -> list[str]:
    return [reward["fn"] for reward in found.targets.get("rewards", ())]


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


def overlong(settings: Settings, limit: int, buffer: int, weight: float) -> Entry:
    """Return the soft overlong penalty: here a filter whose limit is the longest completion, with weight 1."""
    is_same = settings["max_completion_length"] == limit and weight == 1
    there = "" if is_same else f"; there below {limit} tokens, with weight {weight:g}"
    remark = f"filtering.overlong_buffer_tokens, below rollout.max_completion_tokens with weight 1{there}"
    return mapped({"filtering.overlong_buffer_tokens": buffer}, remark, differs=not is_same)
