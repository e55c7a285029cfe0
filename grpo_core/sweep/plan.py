"""What a sweep is about to do, checked before its first run: every arm's configuration, and what the arms say together."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_core.config import RunConfig, apply_overrides, check_consistency, find_config
from grpo_core.config.derived import advantage_rms_factor, weight_of_kl
from grpo_core.config.loading import explain, read_values
from grpo_core.config.origin import find_sweep
from grpo_core.errors import ConfigError, listed
from grpo_core.sweep.arms import MOST_ARMS, arm_config, count_arms, grid
from grpo_core.sweep.checks import check_arms, check_keys, counted_arms, warnings
from grpo_core.sweep.display import arm_name, first_few
from grpo_core.sweep.schema import Range, SweepConfig

TPE_STARTUP = 10
"""Trials that Optuna's TPE draws at random before it learns."""
SHOWN_ARMS = 40
OF_PROMPTS = ("data.seed", "data.source", "data.size", "data.eval_fraction", "data.task_args", "data.hub_split")
"""Keys that decide which prompts there are, and which of them are held out."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep whose arms have been checked."""

    sweep: SweepConfig
    base: Mapping[str, Any]
    """Plain values of the base, the sweep's overrides applied."""
    preset: str
    num_arms: int
    configs: tuple[RunConfig, ...]
    """Of every arm of a grid; of a search, the ends of its ranges."""
    notes: tuple[str, ...]
    """Warnings, each with the number of arms that it is about."""

    @property
    def num_runs(self) -> int:
        """Arms times seeds."""
        return self.num_arms * len(self.sweep.seeds)


def load_sweep(path: Path | str, overrides: Mapping[str, Any] | None = None) -> Plan:
    """Return the checked plan of a sweep file (or of a file in `configs/sweeps/` by name), {key: value} overrides last.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, an axis is empty, misspelt or without effect, or an arm
            contradicts itself.
    """
    return make_plan(apply_overrides(read_values(find_sweep(path)), overrides or {}))


def make_plan(values: Mapping[str, Any]) -> Plan:
    """Return the checked plan of a sweep's plain values.

    Raises:
        ConfigError: as `load_sweep`.
    """
    try:
        sweep = SweepConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(listed(explain(error, SweepConfig))) from error
    check_keys(sweep)
    base_file = find_config(sweep.base)
    base = apply_overrides(read_values(base_file), sweep.overrides)
    configs = _arm_configs(sweep, base)
    check_arms(sweep, configs)
    return Plan(
        sweep=sweep,
        base=base,
        preset=base_file.stem,
        num_arms=count_arms(sweep),
        configs=tuple(configs),
        notes=tuple(_notes(sweep, configs)),
    )


def _arm_configs(sweep: SweepConfig, base: Mapping[str, Any]) -> list[RunConfig]:
    """Return the configuration of every arm (of a range: of its ends), or refuse all faults at once, each with an arm."""
    size = math.prod(2 if isinstance(axis, Range) else len(axis) for axis in sweep.axes.values())
    if size > MOST_ARMS:
        raise ConfigError(f"axes: {size} combinations are more than {MOST_ARMS}; shorten some axes, or use ranges")
    points = list(grid(sweep))
    configs, faults = [], defaultdict[str, list[str]](list)
    for values in points:
        try:
            configs.append(arm_config(sweep, base, values))
        except ConfigError as error:
            for line in str(error).splitlines():
                faults[line].append(arm_name(values))
    if faults:
        raise ConfigError(listed([f"arm {first_few(names, 1)}: {line}" for line, names in faults.items()]))
    return configs


def _notes(sweep: SweepConfig, configs: Sequence[RunConfig]) -> list[str]:
    counts = Counter(text for config in configs for text in check_consistency(config))
    is_shared = sweep.runs.where == "local" and sweep.runs.concurrency > 1
    crowded = f"null lets each of {sweep.runs.concurrency} runs at a time use every core; set it to their share"
    counts[f"training.threads: {crowded}"] = sum(is_shared and config.training.threads is None for config in configs)
    unresumable = "training.engine trl cannot resume, so a run that is killed has failed"
    counts[unresumable] = sum(config.training.engine != "native" for config in configs)
    data_axes = [key for key in sweep.axes if key in OF_PROMPTS or key.startswith("data.task_args.")]
    last, steps = sweep.objective.last_steps, [config.training.steps for config in configs]
    notes = {
        f"trials: {sweep.trials} of sampler tpe are all drawn at random; it learns from the first {TPE_STARTUP}": (
            sweep.sampler == "tpe" and (sweep.trials or 0) <= TPE_STARTUP
        ),
        f"axes.{', axes.'.join(data_axes)}: arms have other prompts, also held-out ones: they are not compared on the same": (
            bool(data_axes)
        ),
        f"objective.last_steps: {last} is more than training.steps {min(steps)}: the mean is over the whole run": (
            last > min(steps)
        ),
        "seeds: one seed shows no spread; no interval can be given, and no arm be called better": len(sweep.seeds) == 1,
    }
    # + leaves out what is about no arm.
    return [
        *counted_arms(+counts, configs),
        *(note for note, holds in notes.items() if holds),
        *warnings(sweep, configs),
    ]


def describe_plan(plan: Plan) -> Iterator[str]:
    """Yield a line each for the sweep, its arms (of a search: the ends of its ranges) and its warnings."""
    sweep = plan.sweep
    seeds = f"{len(sweep.seeds)} seeds ({', '.join(map(str, sweep.seeds))})"
    yield f"{plan.num_arms} arms x {seeds} = {plan.num_runs} runs of {plan.preset}"
    yield f"objective: {sweep.objective.metric}; sampler: {sweep.sampler}" + (f"; hold: {sweep.hold}" if sweep.hold else "")
    for number, (values, config) in enumerate(zip(grid(sweep), plan.configs[:SHOWN_ARMS], strict=False)):
        factor, rollout = advantage_rms_factor(config), config.rollout
        spread = f"advantage_rms_factor {factor:.4f}; " if factor else ""
        yield (
            f"  {number:3d}  {arm_name(values)}: {rollout.num_prompts_per_step} x {rollout.group_size} completions a step; "
            f"{spread}effective beta {weight_of_kl(config)}"
        )
    if len(plan.configs) > SHOWN_ARMS:
        yield f"  ... and {len(plan.configs) - SHOWN_ARMS} more"
    yield from (f"warning: {note}" for note in plan.notes)
    yield f"{len(plan.notes)} warning(s); the sweep is valid"
