"""Checks of the monitor's rules: what a kind does not take, what could never be a breach, and where a sync cannot follow."""

from grpo_core.config.derived import is_single_update
from grpo_core.config.inert import Finding, error_if, warning_if
from grpo_core.config.names import is_import_path
from grpo_core.config.rules import OF_KL, UNKNOWN_BEFORE_SYNC, RuleConfig
from grpo_core.config.schema import RunConfig
from grpo_core.metrics import is_registered

Findings = tuple[Finding, ...]
SHORT_SILENCE = 1.0
"""Seconds."""


def check_rules(config: RunConfig) -> Findings:
    """Return what is wrong with the rules of a run."""
    rules = config.monitor.rules
    doubled = sorted({rule.name for index, rule in enumerate(rules) if rule in rules[:index]})
    found = (
        finding
        for index, rule in enumerate(rules)
        for check in (_metric, _bound, _window, _function, _sync)
        for finding in check(f"monitor.rules.{index}", rule, config)
    )
    return (
        *found,
        _never_full(config),
        *(error_if(True, f"monitor.rules: the rule {name} is listed twice; list it once") for name in doubled),
    )


def _never_full(config: RunConfig) -> Finding:
    """Return the warning about windows that were not named and that the run is too short for; default rules may be."""
    rules, steps = config.monitor.rules, config.training.steps
    idle = {rule.name: rule.steps for rule in rules if rule.window is None and rule.traits.window and rule.steps > steps}
    is_listed = rules != type(config.monitor)().rules
    listed = ", ".join(f"{name} ({window} steps)" for name, window in idle.items())
    return warning_if(
        is_listed and bool(idle),
        f"monitor.rules: never a breach in {steps} steps (training.steps), with the windows that they have by default: "
        f"{listed}",
    )


def _metric(key: str, rule: RuleConfig, config: RunConfig) -> Findings:
    metric, names_one, key = rule.metric or "", rule.kind in OF_KL, f"{key}.metric"
    is_known = metric.startswith("kl/") and is_registered(metric)
    return (
        error_if(
            not names_one and rule.metric is not None,
            f"{key}: {rule.metric!r} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(
            names_one and not is_known,
            f"{key}: a {rule.kind} rule needs a KL metric such as kl/ref/k3, got {rule.metric!r}",
        ),
        error_if(
            names_one and metric.startswith("kl/probe/") and is_known and config.probe.every_steps is None,
            f"{key}: {metric} is measured only where probe.every_steps is set, here it is null",
        ),
        error_if(
            names_one and metric == "kl/old/k3" and is_single_update(config),
            f"{key}: kl/old/k3 is measured only with several optimizer steps a step, here is one",
        ),
    )


def _bound(key: str, rule: RuleConfig, _config: RunConfig) -> Findings:
    traits, key = rule.traits, f"{key}.bound"
    return (
        error_if(
            not traits.takes_bound and rule.bound is not None,
            f"{key}: {rule.bound} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(traits.needs_bound and rule.bound is None, f"{key}: a {rule.kind} rule needs a bound in seconds"),
        warning_if(
            rule.kind == "stalled" and (rule.bound or SHORT_SILENCE) < SHORT_SILENCE,
            f"{key}: {rule.bound} s is shorter than most steps take; a healthy run would be reported as stalled",
        ),
        error_if(
            traits.takes_bound and rule.watched is not None and is_registered(rule.watched) and rule.limit is None,
            f"{key}: {rule.watched} has no bound of its own, so a rule about it needs one",
        ),
        error_if(
            rule.kind == "zero_variance" and (rule.bound or 0) >= 1,
            f"{key}: {rule.bound} is never exceeded by a share of groups; set it below 1",
        ),
        error_if(
            rule.kind == "length_explosion" and (rule.bound or 2) <= 1,
            f"{key}: {rule.bound} times the length of the first steps is no explosion; set it above 1",
        ),
    )


def _window(key: str, rule: RuleConfig, config: RunConfig) -> Findings:
    sync_steps, key = config.reference.sync_steps, f"{key}.window"
    ends_at_syncs = rule.kind == "kl_rate" and (rule.metric or "").startswith("kl/ref/")
    never_full = ends_at_syncs and sync_steps is not None and sync_steps < rule.steps
    return (
        error_if(
            rule.traits.window is None and rule.window is not None,
            f"{key}: {rule.window} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(
            never_full,
            f"{key}: {rule.steps} steps never pass between two syncs (reference.sync_steps {sync_steps}), and the slope of "
            f"{rule.metric} is not taken across one; lower it, or watch kl/init/k3",
        ),
        error_if(
            rule.kind == "kl_rate" and rule.steps < 2,
            f"{key}: a slope needs at least 2 steps, got {rule.steps}",
        ),
        warning_if(
            rule.traits.window is not None and config.training.steps < (rule.window or 0),
            f"{key}: a {rule.kind} rule counts {rule.steps} steps, and training.steps is {config.training.steps}: it is never "
            "a breach",
        ),
    )


def _function(key: str, rule: RuleConfig, _config: RunConfig) -> Findings:
    function, is_custom = rule.function, rule.kind == "custom"
    return (
        error_if(
            not is_custom and function is not None,
            f"{key}.function: {function!r} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(
            not is_custom and bool(rule.options),
            f"{key}.options: {rule.options} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(
            is_custom and not is_import_path(function or ""),
            f"{key}.function: a custom rule needs module:function, such as my_rules:drift, got {function!r}",
        ),
    )


def _sync(key: str, rule: RuleConfig, config: RunConfig) -> Findings:
    is_sync, key, watched = rule.action == "sync", f"{key}.action", rule.watched or ""
    changed_by_sync = watched.startswith(("kl/ref/", "kl/probe/")) or rule.kind == "custom"
    return (
        error_if(
            is_sync and not rule.traits.can_sync,
            f"{key}: sync cannot follow a {rule.kind} rule; choose warn or stop",
        ),
        error_if(
            is_sync and watched.startswith(UNKNOWN_BEFORE_SYNC),
            f"{key}: {watched} is not known when the step decides on a sync; choose warn or stop",
        ),
        error_if(
            is_sync and config.training.engine != "native",
            f"{key}: sync is not possible with training.engine {config.training.engine}; use the native engine",
        ),
        warning_if(
            is_sync and rule.traits.can_sync and not changed_by_sync,
            f"{key}: a sync does not change {watched}; the rule may synchronise every {rule.steps} steps",
        ),
    )
