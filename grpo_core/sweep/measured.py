"""What figures of steps say of a run's end, and whether a run of some configuration will have measured them there.

A figure of every step is noisy, so the last steps are averaged. A probe is not: it measures the policy as it is at one step, and a
mean over several probes would describe policies that the run has left behind. Steps count, never measurements: a figure that was
measured every ten steps must not be averaged over the last five times it was measured, which is most of the run.
"""

from collections.abc import Mapping

from grpo_core.config import RunConfig
from grpo_core.config.findings import is_single_update
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


def last_measured(config: RunConfig, key: str) -> int:
    """Return the last step at which a run of `training.steps` steps measures a metric of steps; 0 where it never does."""
    metric, steps, reference = find_metric(key), config.training.steps, config.reference
    when = metric.when if metric is not None else "step"
    if when == "probe":
        return _last_multiple(config.probe.every_steps, steps)
    if when == "sync":
        return _last_multiple(reference.sync_steps, steps)
    if when == "multi_update":
        return 0 if is_single_update(config) else steps
    if key.startswith("kl/init/") and reference.sync_steps is not None and reference.sync_steps < steps:
        # Until the first sync the initial policy is the reference, which is measured at every step.
        return max(reference.sync_steps, _last_multiple(reference.kl_init_every, steps))
    return steps


def unmeasured_at_end(config: RunConfig, key: str, last_steps: int) -> str | None:
    """Return why the last steps of a run hold no figure of a metric, and what to change; None where they hold one."""
    steps, measured = config.training.steps, last_measured(config, key)
    if measured > max(0, steps - last_steps):
        return None
    period = next((name for name in _period_keys(key) if _value(config, name) is not None), None)
    if not measured or period is None:
        return f"{key} is never measured in the {steps} steps (training.steps) of a run"
    return (
        f"{key} is measured for the last time at step {measured} ({period} {_value(config, period)}), before the last {last_steps} "
        f"of {steps} steps (objective.last_steps, training.steps), so no run has it at its end; let {period} divide {steps}, or set "
        f"objective.last_steps to {steps - measured + 1} or more"
    )


def _period_keys(key: str) -> tuple[str, ...]:
    metric = find_metric(key)
    when = metric.when if metric is not None else "step"
    return {"probe": ("probe.every_steps",), "sync": ("reference.sync_steps",)}.get(when, ("reference.kl_init_every",))


def _value(config: RunConfig, name: str) -> int | None:
    section, _, key = name.partition(".")
    value: int | None = getattr(getattr(config, section), key)
    return value


def _last_multiple(every: int | None, steps: int) -> int:
    return 0 if every is None else steps // every * every
