"""The figures of a run, which results, statistics, tables, pictures and MLflow have in common; and when each is measured.

A figure of every step is noisy, so the last steps are averaged. A probe is not: it measures the policy as it is at one step,
and a mean over several probes would describe policies that the run has left behind. Steps count, never measurements: the last
five measurements of a figure that is measured every ten steps are most of the run, not its end.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_core.config import RunConfig
from grpo_core.config.derived import has_sync_rule, is_single_update
from grpo_core.config.schedule import exact_every, is_exact
from grpo_core.metrics import find_metric
from grpo_core.sweep.display import UNKNOWN, duration, plain, with_half_width
from grpo_core.sweep.schema import ObjectiveConfig, SweepConfig


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure of a run."""

    key: str
    """Column of the results; NaN where it is unknown."""
    metric: str | None = None
    """The metric of which it is the value of the last steps: their mean, of a probe the last one in them."""
    table: Literal["reached", "used"] | None = None
    """The table of arms that has a column of it, once any run has it."""
    heading: str = ""
    unit: str = ""
    shown: Literal["spread", "mean", "count", "time"] = "spread"
    """As mean ± half its interval, as a mean alone, as a whole number, or as a time."""
    outcome: str = ""
    """What it is called where the levels of knobs are compared in it; empty where they are not."""
    drift: str = ""
    """Unit and kind of a drift from the initial policy, for the answer."""
    in_mlflow: bool = False
    """Whether each run gets it as metric `sweep/<key>`, so that MLflow's compare page has it."""

    def text(self, mean: float, half: float) -> str:
        """Return a mean over runs as its table shows it, with half of its interval where it is shown with one."""
        if self.shown == "time":
            return duration(mean)
        if self.shown == "count":
            return UNKNOWN if math.isnan(mean) else f"{mean:,.0f}"
        return with_half_width(mean, half) if self.shown == "spread" else plain(mean)


MEASURES = {
    measure.key: measure
    for measure in (
        Measure(key="objective", table="reached", heading="objective", outcome="objective", in_mlflow=True),
        Measure(
            key="accuracy",
            table="reached",
            heading="held-out accuracy",
            unit="share",
            outcome="held-out accuracy",
            in_mlflow=True,
        ),
        Measure(key="accuracy_before"),
        Measure(
            key="reward",
            metric="reward/mean",
            table="reached",
            heading="reward",
            outcome="reward at the end",
            in_mlflow=True,
        ),
        Measure(key="kl_ref", metric="kl/ref/drift"),
        Measure(key="kl_init", metric="kl/init/drift"),
        Measure(
            key="kl_ref_seq",
            metric="kl/ref/seq",
            table="reached",
            heading="KL to the reference",
            unit="nats/completion",
            in_mlflow=True,
        ),
        Measure(
            key="kl_init_seq",
            metric="kl/init/seq",
            table="reached",
            heading="KL to the initial policy",
            unit="nats/completion",
            outcome="KL to the initial policy, nats per completion",
            drift="nats per completion",
            in_mlflow=True,
        ),
        Measure(
            key="probe_kl_init",
            metric="kl/probe/full_init",
            table="reached",
            heading="the same, exact",
            unit="nats/token, last probe",
            outcome="exact KL to the initial policy, nats per token (last probe)",
            drift="exact, nats per token on the probe set",
            in_mlflow=True,
        ),
        Measure(key="drift", heading="drift", in_mlflow=True),
        Measure(key="steps", table="used", heading="steps", shown="count"),
        Measure(key="completions", table="used", heading="completions", shown="count"),
        Measure(key="tokens", table="used", heading="tokens", unit="generated", shown="count"),
        Measure(
            key="train_seconds",
            table="used",
            heading="training steps",
            unit="time",
            shown="time",
            outcome="seconds in training steps",
        ),
        Measure(key="wall_seconds", table="used", heading="whole run", unit="time", shown="time"),
        Measure(
            key="zero_std_frac",
            table="used",
            heading="groups with equal rewards",
            unit="share",
            shown="mean",
            outcome="share of groups with equal rewards",
            in_mlflow=True,
        ),
        Measure(key="advantage_rms_factor", table="used", heading="advantage RMS factor", shown="mean", in_mlflow=True),
        Measure(key="effective_beta", table="used", heading="effective β", shown="mean", in_mlflow=True),
    )
}
OUTCOMES = tuple(key for key, measure in MEASURES.items() if measure.outcome)
"""What effects.parquet says of each knob; the objective is the question, the rest explains it."""
DRIFTS = ("probe_kl_init", "kl_init_seq")
"""Measures of the drift from the initial policy, the better first."""
EXACT_DRIFT = "kl/probe/full_init"


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
    metric = find_metric(key)
    if metric is not None and metric.when == "multi_update":
        return not is_single_update(config)
    period = _period(config, key, step)[1]
    return period is not None and step % period == 0


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
    name, period = _period(config, key, steps)
    return (
        f"{key} is measured for the last time at step {measured} ({name} {period}), before the last {last_steps} of {steps} "
        f"steps (objective.last_steps, training.steps), so no run has it at its end; let {name} divide {steps}, or set "
        f"objective.last_steps to {steps - measured + 1} or more"
    )


def _period(config: RunConfig, key: str, step: int) -> tuple[str, int | None]:
    """Return the key that says how often a metric is measured around a step, and in how many steps: None is never."""
    metric, reference = find_metric(key), config.reference
    if metric is not None and metric.is_probe:
        return "probe.every_steps", config.probe.every_steps
    if metric is not None and metric.when == "sync":
        return "reference.sync_steps", reference.sync_steps
    if key == "ref/param_distance":
        return "reference.distance_every", reference.distance_every
    # Until the first sync the initial policy is the reference, which is measured at every step.
    first = 0 if has_sync_rule(config) else reference.sync_steps
    is_sparse = key.startswith("kl/init/") and first is not None and step > first
    every = reference.kl_init_every if is_sparse else 1
    if is_exact(key):
        full = reference.kl_full_every if is_sparse else exact_every(config)
        return "reference.kl_full_every", None if full is None else math.lcm(full, every)
    return "reference.kl_init_every", every


def find_unmeasured(sweep: SweepConfig, configs: Sequence[RunConfig]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the arms of a sweep will not measure at their end, or where the pruner looks, with the number of arms.

    First the faults: the objective, its bound or its price, or the pruner's budget rests on it. Then the warnings: it will be
    missing in tables and report.
    """
    faults = Counter(fault for config in configs for fault in _faults(sweep, config))
    warnings = Counter(warning for config in configs for warning in _warnings(sweep.objective, config))
    return counted_arms(faults, len(configs)), counted_arms(warnings, len(configs))


def _faults(sweep: SweepConfig, config: RunConfig) -> Iterator[str]:
    for key, metric in _used(sweep.objective).items():
        if (why := unmeasured_at_end(config, metric, sweep.objective.last_steps)) is not None:
            yield f"{key}: {why}"
    yield from _idle_budget(sweep, config)


def _warnings(objective: ObjectiveConfig, config: RunConfig) -> Iterator[str]:
    if not last_measured(config, EXACT_DRIFT) or EXACT_DRIFT in _used(objective).values():
        return  # no probe is wanted, or its period beyond the run has a warning of its own; or it is a fault
    if (why := unmeasured_at_end(config, EXACT_DRIFT, objective.last_steps)) is not None:
        yield f"the report will lack the exact drift: {why}"


def _used(objective: ObjectiveConfig) -> dict[str, str]:
    """Return the keys that decide which arm is best -> the metric of steps that each rests on."""
    used = {} if objective.is_of_evaluation else {"objective.metric": objective.metric}
    keys = {"objective.kl_bound": objective.kl_bound, "objective.kl_penalty": objective.kl_penalty}
    return used | {key: objective.kl_metric for key, value in keys.items() if value is not None}


def _idle_budget(sweep: SweepConfig, config: RunConfig) -> Iterator[str]:
    pruner, metric = sweep.pruner, sweep.objective.kl_metric
    looks = pruner.budget_rungs(config.training.steps) if pruner.kl_budget is not None else range(0)
    windows = (range(max(1, look - pruner.window + 1), look + 1) for look in looks)
    if looks and not any(is_measured(config, metric, step) for window in windows for step in window):
        yield (
            f"pruner.kl_budget: {pruner.kl_budget:g} can never prune: {metric} is not measured in the {pruner.window} steps "
            f"(pruner.window) up to any step at which it is compared (pruner.first_step {pruner.first_step}, every "
            f"{pruner.every_steps}); compare at steps that measure it, or set a larger pruner.window"
        )


def counted_arms(texts: Mapping[str, int], total: int) -> tuple[str, ...]:
    """Return texts, each with the number of arms that it is about."""
    return tuple(f"{count} of {total} arms: {text}" for text, count in texts.items())
