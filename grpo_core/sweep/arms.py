"""One arm: what it sets, and the configuration of its run with a seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.errors import ConfigError
from grpo_core.sweep.axes import Values
from grpo_core.sweep.display import arm_name
from grpo_core.sweep.schema import SweepConfig

GROUP_SIZE, PROMPTS = "rollout.group_size", "rollout.num_prompts_per_step"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One point of the search space; of an Optuna study: one trial."""

    number: int
    """Its trial's."""
    values: Values

    @property
    def name(self) -> str:
        """What distinguishes it from the other arms: `β=0.04 G=8 sync=never`."""
        return arm_name(self.values)

    def run_name(self, seed: int) -> str:
        """Return what its run with a seed is called: `β=0.04 G=8 sync=never seed=0`."""
        return f"{self.name} seed={seed}"


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
