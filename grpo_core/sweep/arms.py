"""One arm: what it sets, the configuration of its run with a seed, and how people tell it from others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.errors import ConfigError
from grpo_core.sweep.axes import Values
from grpo_core.sweep.schema import SweepConfig

NAMES = {
    "loss.beta": "β",
    "rollout.group_size": "G",
    "reference.sync_steps": "sync",
    "reference.mixup_alpha": "alpha",
}
"""Short names of knobs; others go by the last part of their key."""
GROUP_SIZE, PROMPTS = "rollout.group_size", "rollout.num_prompts_per_step"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One point of the search space; of an Optuna study: one trial."""

    number: int
    """Its trial's."""
    values: Values

    @property
    def name(self) -> str:
        """What tells it from the other arms: `β=0.04 G=8 sync=never`."""
        return " ".join(f"{short_name(key)}={shown_value(key, value)}" for key, value in self.values.items())


def short_name(key: str) -> str:
    """Return how a knob is called in names of arms and runs."""
    return NAMES.get(key, key.rpartition(".")[2])


def shown_value(key: str, value: Any) -> str:
    """Return a knob's value as people read it; a reference that is never synchronised says so."""
    if value is None:
        return "never" if key == "reference.sync_steps" else "null"
    return f"{value:g}" if isinstance(value, float) else str(value)


def arm_overrides(sweep: SweepConfig, base: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """Return what an arm changes of the base: its own values, and what keeps the sweep's invariant where G varies.

    Args:
        sweep: the sweep.
        base: the base's plain values, overrides applied.
        values: the arm's.

    Raises:
        ConfigError: the group size does not divide the completions that are held.
    """
    overrides = dict(values)
    if sweep.hold in ("completions", "tokens"):
        rollout = base.get("rollout") or {}
        defaults = RunConfig().rollout
        prompts = rollout.get("num_prompts_per_step", defaults.num_prompts_per_step)
        held = prompts * rollout.get("group_size", defaults.group_size)
        size = values[GROUP_SIZE]
        if not isinstance(size, int) or size < 1 or held % size:
            raise ConfigError(
                f"axes.{GROUP_SIZE}: {size} does not divide the {held} completions a step of the base "
                f"({PROMPTS} x {GROUP_SIZE}), which hold: {sweep.hold} keeps; choose divisors of {held}, or hold: prompts"
            )
        overrides[PROMPTS] = held // size
    return overrides


def arm_config(sweep: SweepConfig, base: Mapping[str, Any], values: Values) -> RunConfig:
    """Return the configuration of an arm, with its first seed.

    Raises:
        ConfigError: it contradicts itself.
    """
    overrides = arm_overrides(sweep, base, values) | {"training.seed": sweep.seeds[0]}
    return validate_config(apply_overrides(base, overrides))
