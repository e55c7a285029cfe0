"""At which steps of a run its periodic things take place, from the configuration alone."""

from grpo_core.config.derived import has_sync_rule, is_single_update, takes_full_kl
from grpo_core.config.rules import RuleConfig
from grpo_core.config.schema import RunConfig
from grpo_core.metrics import find_metric


def last_step(config: RunConfig) -> int:
    """Return the last step that a run can have: every completion has at least one token of `training.max_tokens`."""
    training, rows = config.training, config.rollout.num_prompts_per_step * config.rollout.group_size
    return training.steps if training.max_tokens is None else min(training.steps, -(-training.max_tokens // rows))


def events(config: RunConfig) -> dict[str, range]:
    """Return {key of a period: steps at which it has an effect}; none where the key is null.

    A sync or a checkpoint of the last step does nothing that the end of the run does not do; the drift from the initial policy
    is measured at every step up to the first sync.
    """
    last, reference, training = last_step(config), config.reference, config.training
    kl_init, kl_full, sync = reference.kl_init_every, reference.kl_full_every, reference.sync_steps
    every = {
        "reference.sync_steps": (sync, sync, last - 1),
        "reference.kl_init_every": (kl_init, kl_init * ((sync or 0) // kl_init + 1), last),
        "reference.kl_full_every": (kl_full, kl_full, last),
        "reference.distance_every": (reference.distance_every, reference.distance_every, last),
        "probe.every_steps": (config.probe.every_steps, config.probe.every_steps, last),
        "evaluation.every_steps": (config.evaluation.every_steps, config.evaluation.every_steps, last),
        "training.checkpoint_every": (training.checkpoint_every, training.checkpoint_every, last - 1),
        "training.completions_every": (training.completions_every, training.completions_every, last),
    }
    return {key: range(first, end + 1, period) if period and first else range(0) for key, (period, first, end) in every.items()}


def most_syncs(config: RunConfig) -> int:
    """Return how many syncs with an effect there are at most."""
    return last_step(config) - 1 if has_sync_rule(config) else len(events(config)["reference.sync_steps"])


def most_measurements(config: RunConfig, rule: RuleConfig) -> int:
    """Return how many measurements of what a rule watches its window can count at most; none of `kl/ref` goes across a sync."""
    last, metric, times = last_step(config), rule.watched or "", events(config)
    until_sync = min(config.reference.sync_steps or last, last)
    if metric.startswith("kl/probe/"):
        return len(times["probe.every_steps"])
    every = exact_every(config) if is_exact(metric) else 1
    if metric.startswith("kl/init/"):
        own = times["reference.kl_full_every"] if is_exact(metric) else range(last + 1)
        later = [step for step in times["reference.kl_init_every"] if step > until_sync and step in own]
        return (until_sync // every if every else 0) + len(later)
    if not every:
        return 0
    # Between two syncs that are no multiple of the period apart there may be one more than in the first stretch.
    return min(-(-until_sync // every), last // every) if rule.begins_at_syncs else last // every


def exact_every(config: RunConfig) -> int | None:
    """Return every how many steps the exact KL to the reference is measured: each where the loss needs it; None = never."""
    is_free = takes_full_kl(config) and is_single_update(config)
    return 1 if is_free else config.reference.kl_full_every


def is_exact(metric: str) -> bool:
    """Return whether a figure is of the exact KL of a step's completions."""
    entry = find_metric(metric)
    return entry is not None and entry.when == "exact"
