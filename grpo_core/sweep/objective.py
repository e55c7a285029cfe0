"""What a sweep may maximise: a figure that every arm measures, and that no axis changes by itself."""

from collections.abc import Iterator, Mapping, Sequence

from grpo_core.config import RunConfig
from grpo_core.config.schedule import exact_every, is_exact
from grpo_core.errors import ConfigError
from grpo_core.metrics import find_metric, is_registered
from grpo_core.sweep.arms import grid
from grpo_core.sweep.schema import SweepConfig

SCHEDULED = ("progress/", "optim/lr", "ref/sync_count", "ref/synced", "ref/steps_since_sync", "ref/lag")
"""Beginnings of the metrics whose value is decided before the first step."""


def refuse_first(faults: Mapping[str, bool]) -> None:
    """Refuse with the first message that holds.

    Raises:
        ConfigError: one of them holds.
    """
    for message, holds in faults.items():
        if holds:
            raise ConfigError(message)


def check_objective(sweep: SweepConfig, configs: Sequence[RunConfig]) -> None:
    """Refuse an objective that some arm does not measure, or that makes no arm better.

    Raises:
        ConfigError: names the key, and an example.
    """
    objective, metric, kl_metric = sweep.objective, sweep.objective.metric, sweep.objective.kl_metric
    examples = (("metric", metric, "", "eval/heldout/pass_at_1 or reward/mean"), ("kl_metric", kl_metric, "kl/", "kl/init/seq"))
    for key, name, start, example in examples:
        if not is_registered(name) or not name.startswith(start):
            raise ConfigError(f"objective.{key}: {name!r} is no such metric; METRICS.md lists them, for example {example}")
    if (why := _why_no_objective(metric)) is not None:
        raise ConfigError(f"objective.metric: {metric} {why}, so it makes no arm better; give, for example, {examples[0][3]}")
    is_probed = any(name.startswith("kl/probe/") for name in (metric, kl_metric))
    for config in configs:
        samples, k = config.evaluation.samples, list(config.evaluation.k)
        is_sampled = bool(samples) and metric.rpartition("_")[2] in map(str, k)
        refuse_first(
            {
                f"objective.metric: {metric} needs held-out prompts, data.eval_fraction is 0": (
                    objective.is_of_evaluation and config.data.eval_fraction == 0
                ),
                f"objective.metric: {metric} is not measured with evaluation.samples {samples} and evaluation.k {k}": (
                    metric.startswith("eval/heldout/pass_at_") and not is_sampled
                ),
                f"objective.metric: {metric} is not of the final evaluation, whose figures are eval/heldout/...": (
                    objective.is_of_evaluation and not metric.startswith("eval/heldout/")
                ),
                "hold: tokens needs overrides training.max_tokens, the tokens of each run": (
                    sweep.hold == "tokens" and config.training.max_tokens is None
                ),
                f"objective.kl_metric: {kl_metric} is measured only where probe.every_steps is set": (
                    is_probed and config.probe.every_steps is None
                ),
                f"objective.kl_metric: {kl_metric} is measured only where reference.kl_full_every is set": (
                    is_exact(kl_metric) and exact_every(config) is None
                ),
            }
        )


def _why_no_objective(metric: str) -> str | None:
    """Return why nobody would maximise a figure; None where somebody may."""
    found = find_metric(metric)
    if found is not None and not found.deterministic:
        return "depends on the machine and is another in every repetition"
    return "follows from the configuration alone" if metric.startswith(SCHEDULED) else None


def swept_units(sweep: SweepConfig, configs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield a warning for each figure of the objective in which equal policies differ, because an axis changes what it counts.

    Args:
        sweep: the sweep.
        configs: of its arms, in the order of its grid.
    """
    objective, points = sweep.objective, list(grid(sweep))
    prices = [objective.kl_metric] if objective.kl_penalty or objective.kl_bound else []
    for figure in dict.fromkeys((objective.metric, *prices)):
        units = [_unit(config, figure) for config in configs]
        keys = [
            key
            for key in sweep.axes
            if any(
                unit != units[0]
                for unit, point in zip(units, points, strict=True)
                if all(point[other] == points[0][other] for other in sweep.axes if other != key)
            )
        ]
        if keys:
            yield (
                f"objective: {figure} contains {', '.join(keys)}, which the axes change: equal policies differ in it; maximise "
                "a figure that means the same in every arm, such as eval/heldout/greedy_accuracy with one verifier"
            )


def _unit(config: RunConfig, figure: str) -> object:
    """Return the settings that enter a figure directly, not through what was learned."""
    functions = [(reward.fn, reward.args) for reward in config.rewards]
    total = [(reward.fn, reward.args, reward.weight) for reward in config.rewards]
    evaluation, name = config.evaluation, figure.partition("/")[2]
    judge = evaluation.verifier or functions[0][0]
    return {
        "eval": ([item for item in functions if item[0] == judge], evaluation.pass_score, evaluation.num_prompts),
        "reward": functions if "/" in name else total,
        "group": total,
        "advantage": (total, config.advantage, config.filtering.overlong_buffer_tokens),
        "loss": (total, config.advantage, config.filtering, config.loss),
        "filter": (total, config.filtering),
        "kl": config.rollout.temperature,
        "policy": config.rollout.temperature,
        "completion": config.rollout.max_completion_tokens,
    }.get(figure.partition("/")[0])
