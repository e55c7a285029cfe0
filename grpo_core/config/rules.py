"""Checks of the monitor's rules: each needs its metric and bound, and has none that does nothing."""

from grpo_core.config.derived import is_single_update
from grpo_core.config.inert import Finding, error_if
from grpo_core.config.observation import RuleConfig
from grpo_core.config.schema import RunConfig
from grpo_core.metrics import is_registered

Findings = tuple[Finding, ...]


def check_rules(config: RunConfig) -> Findings:
    """Return the findings about the monitor's rules: metrics and bounds that are missing, or have no effect."""
    return tuple(
        finding
        for index, rule in enumerate(config.monitor.rules)
        for finding in (*_metric_of_a_rule(f"monitor.rules.{index}.metric", rule, config), *_bound_of_a_rule(index, rule))
    )


def _metric_of_a_rule(key: str, rule: RuleConfig, config: RunConfig) -> Findings:
    metric, is_budget = rule.metric or "", rule.kind == "kl_budget"
    return (
        error_if(
            not is_budget and rule.metric is not None,
            f"{key}: {rule.metric!r} has no effect on a {rule.kind} rule; leave it out",
        ),
        error_if(
            is_budget and not (metric.startswith("kl/") and is_registered(metric)),
            f"{key}: a kl_budget rule needs a KL metric such as kl/ref/k3, got {rule.metric!r}",
        ),
        error_if(
            is_budget and metric.startswith("kl/probe/") and is_registered(metric) and config.probe.every_steps is None,
            f"{key}: {metric} is measured only where probe.every_steps is set, here it is null",
        ),
        error_if(
            is_budget and metric == "kl/old/k3" and is_single_update(config),
            f"{key}: kl/old/k3 is measured only with several optimizer steps a step, here is one",
        ),
    )


def _bound_of_a_rule(index: int, rule: RuleConfig) -> Findings:
    key, needs_one = f"monitor.rules.{index}.bound", rule.kind != "non_finite"
    unit = "seconds" if rule.kind == "stalled" else "nats"
    return (
        error_if(
            not needs_one and rule.bound is not None,
            f"{key}: {rule.bound} has no effect on a non_finite rule; leave it out",
        ),
        error_if(needs_one and rule.bound is None, f"{key}: a {rule.kind} rule needs a bound in {unit}"),
    )
