"""What figures of steps say of a run's end, and whether a run of some configuration will have measured them there.

A figure of every step is noisy, so the last steps are averaged. A probe is not: it measures the policy as it is at one step,
and a mean over several probes would describe policies that the run has left behind. Steps count, never measurements: the last
five measurements of a figure that is measured every ten steps are most of the run, not its end.
"""

from collections.abc import Mapping

from grpo_core.config import RunConfig
from grpo_core.config.derived import is_single_update
from grpo_core.metrics import find_metric


def figure_at_end(values: Mapping[int, float], key: str, *, end: int, count: int) -> float | None:
    """Return what a metric says of the last steps up to `end`; None where it was not measured in them.

    Args:
        values: the figure by step, of the steps where it was measured.
        key: the metric; of a probe the last measurement counts, of any other the mean.
        end: the last step that counts.
        count: how many steps count, `end` included.

    >>> figure_at_end({10: 1.0, 20: 2.0, 30: 3.0}, "kl/probe/full_init", end=30, count=15)
    3.0
    >>> figure_at_end({10: 1.0, 20: 2.0, 30: 3.0}, "kl/init/seq", end=30, count=15)
    2.5
    >>> figure_at_end({10: 1.0, 20: 2.0}, "kl/probe/full_init", end=30, count=5) is None
    True
    """
    steps = sorted(step for step in values if end - count < step <= end)
    if not steps:
        return None
    metric = find_metric(key)
    if metric is not None and metric.is_probe:
        return values[steps[-1]]
    return sum(values[step] for step in steps) / len(steps)


def is_measured(config: RunConfig, key: str, step: int) -> bool:
    """Return whether a run measures a metric of steps at a step."""
    metric, reference = find_metric(key), config.reference
    when = metric.when if metric is not None else "step"
    if when == "probe":
        return config.probe.every_steps is not None and step % config.probe.every_steps == 0
    if when == "sync":
        return reference.sync_steps is not None and step % reference.sync_steps == 0
    if when == "multi_update":
        return not is_single_update(config)
    if key.startswith("kl/init/") and reference.sync_steps is not None and step > reference.sync_steps:
        # Until the first sync the initial policy is the reference, which is measured at every step.
        return step % reference.kl_init_every == 0
    return True


def last_measured(config: RunConfig, key: str) -> int:
    """Return the last step at which a run of `training.steps` steps measures a metric of steps; 0 where it never does."""
    return next((step for step in range(config.training.steps, 0, -1) if is_measured(config, key, step)), 0)


def unmeasured_at_end(config: RunConfig, key: str, last_steps: int) -> str | None:
    """Return why the last steps of a run hold no figure of a metric, and what to change; None where they hold one."""
    steps, measured = config.training.steps, last_measured(config, key)
    if measured > max(0, steps - last_steps):
        return None
    if not measured:
        return f"{key} is never measured in the {steps} steps (training.steps) of a run"
    name, period = _period(config, key)
    return (
        f"{key} is measured for the last time at step {measured} ({name} {period}), before the last {last_steps} of {steps} "
        f"steps (objective.last_steps, training.steps), so no run has it at its end; let {name} divide {steps}, or set "
        f"objective.last_steps to {steps - measured + 1} or more"
    )


def _period(config: RunConfig, key: str) -> tuple[str, int | None]:
    """Return the key that says how often a metric is measured which is not measured at every step, and its value."""
    metric = find_metric(key)
    if metric is not None and metric.is_probe:
        return "probe.every_steps", config.probe.every_steps
    if metric is not None and metric.when == "sync":
        return "reference.sync_steps", config.reference.sync_steps
    return "reference.kl_init_every", config.reference.kl_init_every
