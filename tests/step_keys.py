"""What every step of a run must hold, by the registry."""

from collections.abc import Collection

from grpo_core.metrics import REGISTRY


def required_step_keys(reward_names: Collection[str]) -> tuple[str, ...]:
    """Return the keys that every step of a run with these reward functions must hold."""
    keys = (metric.key.replace("<fn>", name) for metric in REGISTRY if metric.when == "step" for name in reward_names)
    return tuple(dict.fromkeys(keys))
