"""Checks of the monitor's rules: what a kind does not take, what could never be a breach, and where a sync cannot follow."""

import math

from grpo_core.config.derived import (
    exact_every,
    is_always_synced,
    is_changed,
    is_exact,
    is_single_update,
    last_step,
    most_measurements,
)
from grpo_core.config.inert import Finding, error_if, warning_if
from grpo_core.config.names import is_import_path
from grpo_core.config.rules import OF_KL, UNKNOWN_BEFORE_SYNC, RuleConfig
from grpo_core.config.schema import RunConfig
from grpo_core.metrics import find_metric

Findings = tuple[Finding, ...]
SHORT_SILENCE = 1.0
"""Seconds."""
LARGEST_VOCABULARY = 10_000_000
"""Tokens; the entropy of a distribution over so many is at most its logarithm."""


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
        *(error_if(True, f"monitor.rules: the rule {name} is listed twice; list it once") for name in doubled),
    )


def _reach(rule: RuleConfig, config: RunConfig) -> tuple[float, float]:
    """Return between which values that lies which is compared with the bound."""
    if is_always_synced(config) and (rule.watched == "kl/probe/full" or (rule.watched or "").startswith("kl/ref/")):
        return 0.0, 0.0
    reaches = {
        "zero_variance": (float(config.rollout.group_size == 1), 1.0),
        "length_explosion": (1.0, config.rollout.max_completion_tokens),
        "entropy_collapse": (0.0, math.log(LARGEST_VOCABULARY)),
    }
    return reaches.get(rule.kind, (-math.inf, math.inf))


def _metric(key: str, rule: RuleConfig, config: RunConfig) -> Findings:
    metric, names_one, key = rule.metric or "", rule.kind in OF_KL, f"{key}.metric"
    entry = find_metric(metric) if metric.startswith("kl/") else None
    return (
        error_if(
            not names_one and rule.metric is not None,
            f"{key}: {rule.metric!r} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(
            names_one and entry is None,
            f"{key}: a {rule.kind} rule needs a KL metric such as kl/ref/drift, got {rule.metric!r}",
        ),
        error_if(
            names_one and entry is not None and not entry.reduction.startswith("mean"),
            f"{key}: {metric} ({entry and entry.meaning}) is no mean KL, which a {rule.kind} rule bounds; watch kl/ref/drift",
        ),
        error_if(
            names_one and metric.startswith("kl/probe/") and entry is not None and config.probe.every_steps is None,
            f"{key}: {metric} is measured only where probe.every_steps is set, here it is null",
        ),
        error_if(
            names_one and is_exact(metric) and exact_every(config) is None,
            f"{key}: {metric} is measured only where reference.kl_full_every is set, here it is null",
        ),
        error_if(
            names_one and metric == "kl/old/k3" and is_single_update(config),
            f"{key}: kl/old/k3 is measured only with several optimizer steps a step, here is one",
        ),
    )


def _bound(key: str, rule: RuleConfig, config: RunConfig) -> Findings:
    traits, key = rule.traits, f"{key}.bound"
    limit, (low, high) = rule.limit or math.nan, _reach(rule, config)
    never, always = (limit <= low, limit > high) if traits.is_below else (limit >= high, limit < low)
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
            traits.takes_bound and rule.watched is not None and find_metric(rule.watched) is not None and rule.limit is None,
            f"{key}: {rule.watched} has no bound of its own, so a rule about it needs one",
        ),
        warning_if(
            (never or always) and is_changed(config.monitor, "rules"),
            f"{key}: {limit:g} is {'never' if never else 'always'} a breach: a {rule.kind} rule compares it with what lies "
            f"between {low:.4g} and {high:.4g}",
        ),
    )


def _window(key: str, rule: RuleConfig, config: RunConfig) -> Findings:
    last, most = last_step(config), most_measurements(config, rule)
    needed = rule.steps + (rule.kind == "length_explosion")  # whose first window is what later ones are compared with
    between = " between two syncs" if rule.begins_at_syncs else ""
    syncing = min((other.steps for other in config.monitor.rules if other.action == "sync"), default=needed)
    # The default rules are nobody's choice: in a short run, or with syncs in quick succession, they are idle.
    is_chosen = is_changed(config.monitor, "rules") or (needed <= last and not between)
    is_idle = rule.traits.window is not None and most < needed and is_chosen
    return (
        error_if(
            rule.traits.window is None and rule.window is not None,
            f"{key}.window: {rule.window} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(
            rule.kind == "kl_rate" and rule.steps < 2,
            f"{key}.window: a slope needs at least 2 steps, got {rule.steps}",
        ),
        warning_if(
            is_idle,
            f"{key}: {rule.name} is never a breach: it needs {needed} measurements of {rule.watched or 'figures'}, and at most "
            f"{most} are made{between} in {last} steps (training.steps)",
        ),
        warning_if(
            bool(between) and syncing < needed <= most,
            f"{key}: {rule.name} counts {needed} measurements between two syncs, and a rule may synchronise every {syncing} "
            "steps",
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
            is_sync and config.reference.sync_steps == 1,
            f"{key}: sync has no effect with reference.sync_steps 1, which synchronises after every step",
        ),
        warning_if(
            is_sync and rule.traits.can_sync and not changed_by_sync,
            f"{key}: a sync does not change {watched}; the rule may synchronise every {rule.steps} steps",
        ),
    )
