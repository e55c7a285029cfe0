"""The arms of a sweep: the values that its axes give them, what each changes of the base, and which of their runs is next."""

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.config.spelling import SEED, SETTING, arm_name
from grpo_core.errors import ConfigError
from grpo_core.sweep.schema import Range, SweepConfig

GROUP_SIZE, PROMPTS = "rollout.group_size", "rollout.num_prompts_per_step"
WRITTEN_OUT = 64
"""A range of at most so many steps is checked at every one of them, a longer one at its ends."""
MOST_ARMS = 2000
"""Combinations that a plan may have: each is a configuration to check, and a grid runs them all."""

Values = Mapping[str, Any]
"""What one arm sets: {key.path: value}."""
Key = tuple[int, int]
"""(arm, seed)."""


def grid(sweep: SweepConfig) -> Iterator[dict[str, Any]]:
    """Return every combination of the axes, the last one varying fastest; of a range, all of its steps or its two ends."""
    choices = [_checked_values(axis) if isinstance(axis, Range) else list(axis) for axis in sweep.axes.values()]
    return (dict(zip(sweep.axes, combination, strict=True)) for combination in itertools.product(*choices))


def _checked_values(axis: Range) -> list[int | float]:
    step = axis.step if axis.step is not None else (1 if axis.is_whole else None)
    if step is not None and (axis.high - axis.low) / step < WRITTEN_OUT:
        return [axis.low + index * step for index in range(int((axis.high - axis.low) / step + 1e-9) + 1)]
    return [axis.low, axis.high]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One point of the search space; of an Optuna study: one trial."""

    number: int
    values: Values

    @property
    def name(self) -> str:
        """What distinguishes it from the other arms: `β 0.04 · G 8 · sync never`."""
        return arm_name(self.values)

    def run_name(self, seed: int) -> str:
        """Return what its run with a seed is called: `β 0.04 · G 8 · sync never · s0`."""
        return arm_name({**self.values, SEED: seed})


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one run of a sweep ended."""

    arm: int
    seed: int
    status: str
    """`finished`, `stopped` (a rule, a person), `pruned` or `failed`."""
    cause: str | None = None
    """Why it was stopped or pruned, or how it failed."""


def arm_overrides(sweep: SweepConfig, base: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """Return what an arm changes of the base: its own values, and what keeps the sweep's invariant where G varies.

    Args:
        sweep: the sweep.
        base: the base's plain values, overrides applied.
        values: the arm's.

    Raises:
        ConfigError: the group size does not divide the completions that are held.
    """
    overrides = {**sweep.settings.get(values.get(SETTING, ""), {}), **{key: values[key] for key in values if key != SETTING}}
    if sweep.hold in ("completions", "tokens"):
        rollout = RunConfig().rollout.model_dump() | (base.get("rollout") or {})
        held, size = rollout["num_prompts_per_step"] * rollout["group_size"], values[GROUP_SIZE]
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
    return validate_config(apply_overrides(base, {**arm_overrides(sweep, base, values), SEED: sweep.seeds[0]}))


def next_run(
    sweep: SweepConfig,
    arms: Mapping[int, Arm],
    outcomes: Mapping[Key, Outcome],
    under_way: Collection[Key],
    parents: Mapping[int, int] = {},
) -> Key | None:
    """Return the run to begin next; None where every run of the arms chosen so far has ended or is under way.

    A grid goes seed by seed, so that a budget that ends early leaves whole blocks in which every arm has the same seeds; a
    sampler, which learns from finished arms, goes arm by arm. A run that is forked from that of another arm (`parents`) comes
    after its end.
    """
    begun = {*outcomes, *under_way}
    ready = (
        (arm, seed)
        for arm, seed in runs_in_order(sweep, arms, outcomes)
        if (arm, seed) not in begun and (arm not in parents or (parents[arm], seed) in outcomes)
    )
    return next(ready, None)


def runs_in_order(sweep: SweepConfig, arms: Mapping[int, Arm], outcomes: Mapping[Key, Outcome]) -> list[Key]:
    """Return every run of the arms chosen so far that is wanted: an arm that was pruned once has no further runs."""
    wanted = [number for number in sorted(arms) if original_of(arms[number], arms) == number]
    pruned = {outcome.arm for outcome in outcomes.values() if outcome.status == "pruned"}
    keys = [(number, seed) for number in wanted for seed in sweep.seeds if number not in pruned or (number, seed) in outcomes]
    return sorted(keys, key=lambda key: sweep.seeds.index(key[1])) if sweep.sampler == "grid" else keys


def original_of(arm: Arm, arms: Mapping[int, Arm]) -> int:
    """Return the number of the first arm with the same values: a sampler may suggest an arm twice, which runs once."""
    return min(number for number, other in arms.items() if dict(other.values) == dict(arm.values))


def total_runs(num_arms: int, sweep: SweepConfig, arms: Mapping[int, Arm]) -> int:
    """Return how many runs the sweep has, as far as its arms are chosen: one that was suggested again has none of its own."""
    repeated = sum(original_of(arm, arms) != number for number, arm in arms.items())
    return (num_arms - repeated) * len(sweep.seeds)


def arm_has_ended(arm: int, sweep: SweepConfig, outcomes: Mapping[Key, Outcome]) -> bool:
    """Return whether all of an arm's runs have ended, or it was pruned and none of them is to come."""
    of_arm = [outcome for outcome in outcomes.values() if outcome.arm == arm]
    return len(of_arm) == len(sweep.seeds) or any(outcome.status == "pruned" for outcome in of_arm)
