"""What the reward functions of another system are here: a function with its arguments, another key, or nothing.

A reward without a counterpart is written into the configuration under a name that no function can have, so that `grpo check`
refuses it until somebody writes the function or removes it: a run without one of its rewards would be another run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core.config.names import BUILTIN_REWARDS, is_import_path
from grpo_core.interop.records import Conclusion, Settings, mapped

TRL_FUNCTIONS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
"""Those of `trl.rewards` that are reward functions; the others of it make one."""
SOLUTION = "solution"
"""Column that the mathematical rewards of TRL and open-r1 read."""


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

    @property
    def is_missing(self) -> bool:
        """Whether nothing here stands for it."""
        return self.fn is None and not self.targets


Find = Callable[[Settings, str, float], Counterpart]
"""From all settings, the name of a reward and its weight to what it is here."""


def none(why: str) -> Counterpart:
    """Return that a reward has no counterpart, and why."""
    return Counterpart(remark=why, differs=True)


def convert_rewards(settings: Settings, weighted: Sequence[tuple[str, float]], find: Find) -> Conclusion:
    """Return what becomes of a list of reward functions.

    Args:
        settings: of the file.
        weighted: (name there, weight).
        find: the system's table.
    """
    rewards: list[dict[str, Any]] = []
    targets: dict[str, Any] = {}
    remarks = []
    differs = False
    for name, weight in weighted:
        found = find(settings, name, weight)
        if found.fn is not None and found.fn in (reward["fn"] for reward in rewards):
            found = none(f"{found.fn} is there already, and each function is listed once")
        if found.fn is not None or found.is_missing:
            fn = missing_name(name, settings.system.name) if found.fn is None else found.fn
            rewards.append({"fn": fn, "weight": weight, **({"args": dict(found.args)} if found.args else {})})
        targets.update(found.targets)
        differs |= found.differs
        what = f"no counterpart of {name}" if found.is_missing else name
        remarks += [f"{what}: {found.remark}"] if found.remark else []
    return mapped({**targets, **({"rewards": rewards} if rewards else {})}, "; ".join(remarks), differs=differs)


def missing_name(name: str, system: str) -> str:
    """Return what stands in `rewards` for a reward that is left to write.

    >>> missing_name("tag_count", "open-r1")
    'tag_count (open-r1)'
    """
    return f"{name.replace(':', '.')} ({system})"


def is_missing_name(fn: str) -> bool:
    """Return whether a name in `rewards` is no function."""
    return fn not in BUILTIN_REWARDS and not is_import_path(fn)


def weighted_names(settings: Settings, names: Sequence[str]) -> list[tuple[str, float]]:
    """Return (name, weight) of each reward.

    Args:
        settings: of the file, with the key `reward_weights`.
        names: of the rewards, TRL's reward model first.

    Raises:
        ConfigError: there are not as many weights as rewards.
    """
    weights = settings["reward_weights"]
    if weights is None:
        return [(name, 1.0) for name in names]
    if len(weights) != len(names):
        raise settings.refuse(f"reward_weights: {len(weights)} weights for {len(names)} rewards; give one for each")
    return list(zip(names, weights, strict=True))


def overlong(settings: Settings, limit: int, buffer: int, weight: float) -> Counterpart:
    """Return the soft overlong penalty: here a filter whose limit is the longest completion, with weight 1."""
    longest = settings["max_completion_length"]
    is_same = longest == limit and weight == 1
    return Counterpart(
        targets={"filtering.overlong_buffer_tokens": buffer},
        remark="filtering.overlong_buffer_tokens, which is below rollout.max_completion_tokens and has weight 1"
        + ("" if is_same else f"; there below {limit} tokens, with weight {weight:g}"),
        differs=not is_same,
    )


def trl_reward(settings: Settings, name: str, weight: float) -> Counterpart:
    """Return what a reward function of `trl grpo` is here: TRL's own run as they are, and so does an import path."""
    module, _, function = name.rpartition(".")
    if function == "get_soft_overlong_punishment" and module in ("", "trl.rewards"):
        return overlong(settings, limit=1280, buffer=256, weight=weight)
    if module in ("", "trl.rewards"):
        if function in TRL_FUNCTIONS:
            return Counterpart(fn=f"trl.rewards:{function}")
        if module:
            return none("`trl.rewards` has no reward function of this name; what begins with get_ makes one")
        known = ", ".join((*TRL_FUNCTIONS, "get_soft_overlong_punishment"))
        return none(f"`trl grpo` has {known}, and import paths; a script with rewards of its own has them in its code")
    return Counterpart(fn=f"{module}:{function}")
