"""The figures of a run, which results, statistics, tables, pictures and MLflow have in common; and what a run's end is.

A figure of every step is noisy, so the last steps are averaged. A probe is not: it measures the policy as it is at one step,
and a mean over several probes would describe policies that the run has left behind. Steps count, never measurements: the last
five measurements of a figure that is measured every ten steps are most of the run, not its end.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grpo_core.metrics import find_metric
from grpo_core.sweep.display import UNKNOWN, duration, plain, with_half_width


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
