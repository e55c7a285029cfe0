"""Before the first run: will every figure that the sweep asks for have been measured in the steps that it is taken from?"""

from collections import Counter
from collections.abc import Iterable, Sequence

from grpo_core.config import RunConfig
from grpo_core.sweep.measured import is_measured, last_measured, unmeasured_at_end
from grpo_core.sweep.pruning import budget_rungs
from grpo_core.sweep.schema import ObjectiveConfig, SweepConfig

EXACT_DRIFT = "kl/probe/full_init"
"""Shown in every report whose runs measure it."""


def find_unmeasured(sweep: SweepConfig, configs: Sequence[RunConfig]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the arms of a sweep will not measure at their end, or where the pruner looks, with the number of arms.

    First the faults: the objective, its bound or its price, or the pruner's budget rests on it. Then the warnings: it will be
    missing in tables and report.
    """
    faults = [fault for config in configs for fault in _faults(sweep, config)]
    warnings = [warning for config in configs for warning in _warnings(sweep.objective, config)]
    return _counted(faults, len(configs)), _counted(warnings, len(configs))


def _faults(sweep: SweepConfig, config: RunConfig) -> Iterable[str]:
    for key, metric in _used(sweep.objective).items():
        if (why := unmeasured_at_end(config, metric, sweep.objective.last_steps)) is not None:
            yield f"{key}: {why}"
    yield from _idle_budget(sweep, config)


def _warnings(objective: ObjectiveConfig, config: RunConfig) -> Iterable[str]:
    every, last_steps = config.probe.every_steps, objective.last_steps
    if every is None or not last_measured(config, EXACT_DRIFT):
        return  # a period beyond the run has a warning of its own
    why = unmeasured_at_end(config, EXACT_DRIFT, last_steps)
    if why is not None and EXACT_DRIFT not in _used(objective).values():
        yield f"the report will lack the exact drift: {why}"
    if why is None and config.training.max_tokens is not None and every > last_steps:
        yield (
            f"runs end at training.max_tokens {config.training.max_tokens}, so their last {last_steps} steps "
            f"(objective.last_steps) may hold no probe (probe.every_steps {every}); such runs have no exact drift: set "
            f"objective.last_steps to {every} or more"
        )


def _used(objective: ObjectiveConfig) -> dict[str, str]:
    """Return the keys that decide which arm is best -> the metric of steps that each rests on."""
    used = {} if objective.is_of_evaluation else {"objective.metric": objective.metric}
    keys = {"objective.kl_bound": objective.kl_bound, "objective.kl_penalty": objective.kl_penalty}
    return used | {key: objective.kl_metric for key, value in keys.items() if value is not None}


def _idle_budget(sweep: SweepConfig, config: RunConfig) -> Iterable[str]:
    pruner, metric = sweep.pruner, sweep.objective.kl_metric
    looks = budget_rungs(pruner, config.training.steps)
    if pruner.kl_budget is None or not looks:
        return
    windows = (range(max(1, look - pruner.window + 1), look + 1) for look in looks)
    if not any(is_measured(config, metric, step) for window in windows for step in window):
        yield (
            f"pruner.kl_budget: {pruner.kl_budget:g} can never prune: {metric} is not measured in the {pruner.window} steps "
            f"(pruner.window) up to any step at which it is compared (pruner.first_step {pruner.first_step}, every "
            f"{pruner.every_steps}); compare at steps that measure it, or set a larger pruner.window"
        )


def _counted(texts: Sequence[str], num_configs: int) -> tuple[str, ...]:
    return tuple(f"{count} of {num_configs} arms: {text}" for text, count in Counter(texts).items())
