"""What a sweep is about to do, checked before its first run: every arm's configuration, and what the arms say together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_core.config import RunConfig, apply_overrides, check_consistency, find_config
from grpo_core.config.findings import is_changed, is_single_update
from grpo_core.config.loading import explain, read_values
from grpo_core.config.presets import find_sweep
from grpo_core.config.section import Section
from grpo_core.errors import ConfigError, listed
from grpo_core.metrics import is_registered
from grpo_core.sweep.arms import GROUP_SIZE, PROMPTS, Arm, arm_config
from grpo_core.sweep.axes import MOST_ARMS, check_axes, count_arms, grid
from grpo_core.sweep.plan_measured import find_unmeasured
from grpo_core.sweep.schema import Range, SweepConfig

BETA = "loss.beta"
TPE_STARTUP = 10
"""Trials that Optuna's TPE draws at random before it learns."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep whose arms have been checked."""

    sweep: SweepConfig
    base: Mapping[str, Any]
    """Plain values of the base, the sweep's overrides applied."""
    preset: str
    """Name of the base."""
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


def make_plan(values: Mapping[str, Any], *, begun: bool = False) -> Plan:
    """Return the checked plan of a sweep's plain values.

    Args:
        values: the plain values.
        begun: the sweep has runs already, so that a drift that they cannot measure is a warning: what there is can be reported.

    Raises:
        ConfigError: as `load_sweep`.
    """
    try:
        sweep = SweepConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(listed(explain(error, SweepConfig))) from error
    check_axes(sweep)
    _check_sampler(sweep)
    _check_idle(sweep)
    _check_hold(sweep)
    base_file = find_config(sweep.base)
    base = apply_overrides(read_values(base_file), sweep.overrides)
    configs = _arm_configs(sweep, base)
    _check_beta(sweep, configs)
    _check_objective(sweep, configs)
    unmeasured = find_unmeasured(sweep, configs)
    if unmeasured.faults and not begun:
        raise ConfigError(listed(list(unmeasured.faults)))
    notes = (*_notes(sweep, configs), *unmeasured.faults, *unmeasured.warnings)
    return Plan(sweep=sweep, base=base, preset=base_file.stem, num_arms=count_arms(sweep), configs=tuple(configs), notes=notes)


def _check_sampler(sweep: SweepConfig) -> None:
    if sweep.sampler == "grid" and sweep.trials is not None:
        raise ConfigError(f"trials: {sweep.trials} has no effect with sampler grid, which runs every arm; leave it out")
    if sweep.sampler != "grid" and sweep.trials is None:
        raise ConfigError(f"trials: sampler {sweep.sampler} needs the number of arms to try, for example trials: 20")
    objective = sweep.objective
    if objective.kl_penalty is not None and objective.kl_bound is not None:
        raise ConfigError(
            f"objective.kl_penalty: {objective.kl_penalty} and objective.kl_bound {objective.kl_bound}: give a price or a bound"
        )


def _check_idle(sweep: SweepConfig) -> None:
    """Refuse keys that do nothing beside the others."""
    pruner = sweep.pruner
    by_reward, by_budget, halves = (
        pruner.reward is not None,
        pruner.kl_budget is not None,
        pruner.reward == "successive_halving",
    )
    idle = {
        ("pruner", "first_step"): not (by_reward or by_budget) and "neither pruner.reward nor pruner.kl_budget",
        ("pruner", "window"): not (by_reward or by_budget) and "neither pruner.reward nor pruner.kl_budget",
        ("pruner", "every_steps"): not (by_budget or pruner.reward == "median") and "neither median nor pruner.kl_budget",
        ("pruner", "min_arms"): not by_reward and "no pruner.reward",
        ("pruner", "reduction_factor"): not halves and "no pruner.reward successive_halving",
        ("runs", "deployment"): sweep.runs.where == "local" and "runs.where local",
        ("", "sampler_seed"): sweep.sampler == "grid" and "sampler grid",
    }
    for (section, key), why in idle.items():
        holder: Section = getattr(sweep, section) if section else sweep
        if why and is_changed(holder, key):
            name = f"{section}.{key}" if section else key
            raise ConfigError(f"{name}: {getattr(holder, key)} has no effect with {why}; leave it out")
    if "training.seed" in sweep.overrides:
        raise ConfigError("overrides.training.seed: has no effect, the sweep sets it; give `seeds`")


def _check_hold(sweep: SweepConfig) -> None:
    swept = GROUP_SIZE in sweep.axes
    if swept and sweep.hold is None:
        raise ConfigError(
            f"hold: axes.{GROUP_SIZE} changes more than the group size unless something is held; say prompts, completions or "
            "tokens"
        )
    if not swept and sweep.hold is not None:
        raise ConfigError(f"hold: {sweep.hold} has no effect without axes.{GROUP_SIZE}; leave it out")
    if sweep.hold is not None and PROMPTS in sweep.axes:
        raise ConfigError(f"axes.{PROMPTS}: contradicts hold: {sweep.hold}, which decides it; leave one out")


def _arm_configs(sweep: SweepConfig, base: Mapping[str, Any]) -> list[RunConfig]:
    """Return the configuration of every arm (of a range: of its ends), or refuse all faults at once, each with an arm."""
    points = list(grid(sweep)) if _size(sweep) <= MOST_ARMS else None
    if points is None:
        raise ConfigError(f"axes: {_size(sweep)} combinations are more than {MOST_ARMS}; shorten some axes, or use ranges")
    configs, faults = [], dict[str, list[Arm]]()
    for number, values in enumerate(points):
        arm = Arm(number=number, values=values)
        try:
            configs.append(arm_config(sweep, base, values))
        except ConfigError as error:
            for line in str(error).splitlines():
                faults.setdefault(line, []).append(arm)
    if faults:
        about = {line: f"{_how_many(arms, len(points))}: {line}" for line, arms in faults.items()}
        raise ConfigError(listed(list(about.values())))
    return configs


def _size(sweep: SweepConfig) -> int:
    size = 1
    for axis in sweep.axes.values():
        size *= 2 if isinstance(axis, Range) else len(axis)
    return size


def _how_many(arms: Sequence[Arm], total: int) -> str:
    if len(arms) == total:
        return f"every arm ({total})"
    return f"arm {arms[0].name}" + (f" and {len(arms) - 1} of {total - 1} others" if len(arms) > 1 else "")


def _check_beta(sweep: SweepConfig, configs: Sequence[RunConfig]) -> None:
    idle = [config for config in configs if _kl_is_zero(config)]
    if BETA in sweep.axes and idle:
        raise ConfigError(
            f"axes.{BETA}: in {len(idle)} of {len(configs)} arms the KL is always 0 (reference.sync_steps 1, "
            "reference.mixup_alpha 1, one update a rollout: the reference is the policy that made the rollouts), so every β is "
            "the same arm there; sync more rarely, or sweep something else"
        )


def _kl_is_zero(config: RunConfig) -> bool:
    reference = config.reference
    return reference.sync_steps == 1 and reference.mixup_alpha == 1 and is_single_update(config)


def _check_objective(sweep: SweepConfig, configs: Sequence[RunConfig]) -> None:
    objective = sweep.objective
    for key in ("metric", "kl_metric"):
        name = getattr(objective, key)
        if not is_registered(name) or (key == "kl_metric" and not name.startswith("kl/")):
            example = "eval/heldout/pass_at_1 or reward/mean" if key == "metric" else "kl/init/seq"
            raise ConfigError(f"objective.{key}: {name!r} is no such metric; METRICS.md lists them, for example {example}")
    for config in configs:
        evaluation, metric = config.evaluation, objective.metric
        if objective.is_of_evaluation and config.data.eval_fraction == 0:
            raise ConfigError(f"objective.metric: {metric} needs held-out prompts, data.eval_fraction is 0")
        if metric.startswith("eval/heldout/pass_at_") and not (
            evaluation.samples and metric.rpartition("_")[2] in map(str, evaluation.k)
        ):
            raise ConfigError(
                f"objective.metric: {metric} is not measured with evaluation.samples {evaluation.samples} and evaluation.k "
                f"{list(evaluation.k)}"
            )
        if objective.is_of_evaluation and not metric.startswith("eval/heldout/"):
            raise ConfigError(f"objective.metric: {metric} is not of the final evaluation, whose figures are eval/heldout/...")
        if sweep.hold == "tokens" and config.training.max_tokens is None:
            raise ConfigError("hold: tokens needs overrides training.max_tokens, the tokens of each run")
        probed = any(name.startswith("kl/probe/") for name in (objective.kl_metric, metric))
        if probed and config.probe.every_steps is None:
            raise ConfigError(f"objective.kl_metric: {objective.kl_metric} is measured only where probe.every_steps is set")


def _notes(sweep: SweepConfig, configs: Sequence[RunConfig]) -> list[str]:
    counts: dict[str, int] = {}
    for config in configs:
        for text in check_consistency(config):
            counts[text] = counts.get(text, 0) + 1
    notes = [f"{count} of {len(configs)} arms: {text}" for text, count in counts.items()]
    crowded = sum(config.training.threads is None for config in configs)
    if crowded and sweep.runs.where == "local" and sweep.runs.concurrency > 1:
        notes.append(
            f"{crowded} of {len(configs)} arms: training.threads: null lets each of {sweep.runs.concurrency} runs at a time "
            "use every core; set it to their share"
        )
    unresumable = sum(config.training.engine != "native" for config in configs)
    if unresumable:
        notes.append(
            f"{unresumable} of {len(configs)} arms: training.engine trl cannot go on, so a run that is killed has failed"
        )
    if sweep.sampler == "tpe" and (sweep.trials or 0) <= TPE_STARTUP:
        notes.append(f"trials: {sweep.trials} of sampler tpe are all drawn at random; it learns from the first {TPE_STARTUP}")
    if len(sweep.seeds) == 1:
        notes.append("seeds: one seed shows no spread; no interval can be given, and no arm be called better")
    return notes
