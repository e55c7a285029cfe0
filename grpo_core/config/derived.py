"""What follows from a configuration: updates, syncs, measurements, the weight of beta, what repeats, and whose code it runs."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from grpo_core.config.names import MADE_KINDS, MADE_ROWS, is_import_path
from grpo_core.config.rules import RuleConfig
from grpo_core.config.schema import RunConfig
from grpo_core.config.section import MOST_ROWS, Section
from grpo_core.metrics import find_metric


def is_single_update(config: RunConfig) -> bool:
    """Return whether each rollout is used for one optimizer step, so that every ratio to the rollouts' policy is 1."""
    return config.loss.epochs_per_rollout == 1 and config.loss.minibatches == 1


def is_changed(section: Section, key: str) -> bool:
    """Return whether a key is not at its default."""
    return bool(getattr(section, key) != _default(type(section), key))


@cache
def _default(section: type[Section], key: str) -> Any:
    """Return a default, of which pydantic makes a deep copy each time."""
    return section.model_fields[key].get_default(call_default_factory=True)


def sampler_treatment(config: RunConfig) -> Literal["none", "truncate", "mask"]:
    """Return how the loss treats the weights between sampler and trainer; null stands for what the sampler needs.

    In bfloat16 another engine's kernels give other probabilities than the trainer's, by more than the last digits.
    """
    return config.loss.sampler_correction or (
        "truncate" if config.model.dtype == "bfloat16" and config.rollout.engine == "vllm" else "none"
    )


def reference_moves(config: RunConfig) -> bool:
    """Return whether the reference may become another policy than the initial one during a run."""
    sync = config.reference.sync_steps
    return config.reference.sync_when is not None or (sync is not None and sync <= config.training.steps)


def is_always_synced(config: RunConfig) -> bool:
    """Return whether the reference is the policy that makes the rollouts at every step, so that every KL between them is 0."""
    return config.reference.sync_steps == 1 and config.reference.mixup_alpha == 1


def takes_full_kl(config: RunConfig) -> bool:
    """Return whether an update needs the reference's distribution at each token."""
    return config.loss.kl_estimator == "full" and config.loss.beta > 0


def measures_full_kl(config: RunConfig) -> bool:
    """Return whether a pass without gradient needs another policy's distribution at each token: the probe, a step's drift."""
    every = config.reference.kl_full_every
    return config.probe.every_steps is not None or (every is not None and every <= config.training.steps)


def reference_moments(config: RunConfig) -> int | str | None:
    """Return when the reference is synchronised: every so many steps, `by drift`, both in words, or None = never."""
    steps = config.reference.sync_steps
    if config.reference.sync_when is None:
        return steps
    return "by drift" if steps is None else f"{steps} and by drift"


def starts_server(config: RunConfig) -> bool:
    """Return whether the run starts a vLLM server, or uses the one that its sweep lends to it."""
    return config.rollout.engine == "vllm" and config.rollout.vllm.mode == "server" and config.rollout.vllm.url is None


def weight_shards(config: RunConfig) -> int:
    """Return over how many processes the weights are spread; each has all of them where an adapter is what is trained."""
    training = config.training
    return training.shards or (training.processes if config.model.lora is None else 1)


def longest_row(config: RunConfig) -> int:
    """Return the tokens of the longest prompt and completion together: the context that a sampler needs."""
    return config.rollout.max_prompt_tokens + config.rollout.max_completion_tokens


def most_prompts(config: RunConfig) -> tuple[int, int]:
    """Return how many (training, held-out) prompts there are at most."""
    data = config.data
    rows = data.size or (MADE_ROWS if data.source.startswith(MADE_KINDS) else MOST_ROWS)
    held_out = round(rows * data.eval_fraction)
    return rows - held_out, held_out


def optimizer_steps(config: RunConfig) -> int:
    """Return the number of optimizer steps of the whole run."""
    return config.training.steps * config.loss.epochs_per_rollout * config.loss.minibatches


def advantage_rms_factor(config: RunConfig) -> float | None:
    """Return the root mean square of one group's advantages, the confound of a group-size sweep.

    sqrt((G-1)/G) for Bessel-corrected standardised rewards, G/(G-1) times that with leave-one-out; None where it is not the
    group's own spread that advantages are divided by.
    """
    size, advantage = config.rollout.group_size, config.advantage
    if advantage.scale != "group_std" or size == 1:
        return None
    return math.sqrt(size / (size - 1) if advantage.baseline == "leave_one_out" else (size - 1) / size)


def effective_beta(config: RunConfig, zero_std_frac: float = 0.0, steered: float = math.nan) -> float:
    """Return what beta weighs beside the advantages: beta over their root mean square; NaN where that is not known.

    It is known where the spread of each group divides its own advantages. A share of groups without variance scales their mean
    square by what is left.

    Args:
        config: of the run.
        zero_std_frac: measured share of groups whose rewards are all equal, in [0, 1].
        steered: measured beta, of a run with `loss.beta_control`.
    """
    factor = advantage_rms_factor(config)
    if factor is None or not 0 <= zero_std_frac < 1:
        return math.nan
    return (config.loss.beta if config.loss.beta_control is None else steered) / (factor * math.sqrt(1 - zero_std_frac))


def weight_of_kl(config: RunConfig) -> str:
    """Return, in words, what one token's KL weighs beside one token's surrogate, and per completion of n tokens."""
    beta, longest = f"{config.loss.beta:g}", config.rollout.max_completion_tokens
    beta += "" if config.loss.beta_control is None else " (in the first step)"
    return {
        "seq-mean-token-mean": f"{beta} x mean KL per token, whatever the length",
        "token-mean": f"{beta} x mean KL per token over the batch; long completions weigh more",
        "seq-mean-token-sum": f"{beta} x KL per completion (grows with its length)",
        "seq-mean-token-sum-norm": f"{beta} x KL per completion / {longest} (grows with its length)",
    }[config.loss.aggregation]


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
        "training.noise_scale_every": (training.noise_scale_every, training.noise_scale_every, last),
        "training.completions_every": (training.completions_every, training.completions_every, last),
    }
    return {key: range(first, end + 1, period) if period and first else range(0) for key, (period, first, end) in every.items()}


def most_syncs(config: RunConfig) -> int:
    """Return how many syncs with an effect there are at most."""
    when = config.reference.sync_when
    by_drift = 0 if when is None else (last_step(config) - 1) // when.at_least_steps
    return max(by_drift, len(events(config)["reference.sync_steps"]))


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
    return 1 if takes_full_kl(config) and is_single_update(config) else config.reference.kl_full_every


def is_exact(metric: str) -> bool:
    """Return whether a figure is of the exact KL of a step's completions."""
    entry = find_metric(metric)
    return entry is not None and entry.when == "exact"


@dataclass(frozen=True, kw_only=True)
class Repeatability:
    """What a repetition of a run has in common with it."""

    what: str
    """In words, for `grpo check`, a resume and a reproduction."""
    is_exact: bool = True
    """Whether the same tokens are drawn, so that the same weights result."""
    unlike: frozenset[str] = frozenset()
    """Figures that differ all the same."""


BITWISE = Repeatability(what="bit for bit, on the same kind of machine with as many threads")
SAME_TOKENS = Repeatability(
    what="the same tokens, and with them the same weights, on the same version of vLLM; a draw that lies within the server's "
    "rounding (1e-5) of another token can differ",
    unlike=frozenset({"kl/sampler/k3"}),
)
STATISTICS = Repeatability(
    what="in its statistics alone: the seed does not decide vLLM's tokens in bfloat16, and weights between sampler and trainer "
    "carry the server's rounding into the loss",
    is_exact=False,
)
OTHER_PROCESSES = Repeatability(what="up to rounding, since others compute it (training.processes, training.shards)")
"""Of steps that another number of processes computes once more, or with other shards."""


def repeatability(config: RunConfig, computed_by: Collection[tuple[int, int]] = ()) -> Repeatability:
    """Return how far a run with this configuration repeats.

    Args:
        config: of the run.
        computed_by: (processes, shards) of each session of it and of its repetition, where they are known.
    """
    found = BITWISE
    if config.rollout.engine != "embedded":
        found = SAME_TOKENS if config.model.dtype == "float32" and sampler_treatment(config) == "none" else STATISTICS
    if found.is_exact and len(set(computed_by)) > 1:
        return replace(OTHER_PROCESSES, unlike=found.unlike)
    if config.training.processes == 1 or not found.is_exact:
        return found
    return replace(found, what=f"{found.what}; with other training.processes or training.shards up to rounding")


@dataclass(frozen=True, kw_only=True)
class Code:
    """One key of a configuration that runs code."""

    key: str
    """Key path."""
    value: str
    """As the configuration gives it."""
    module: str | None = None
    """Of a function that is imported: a reward, a rule of the monitor."""

    def __str__(self) -> str:
        """`rewards.0.fn: my_rewards:brevity`."""
        return f"{self.key}: {self.value}"


def code_in(config: RunConfig) -> tuple[Code, ...]:
    """Return every key that makes a run execute code from outside of this project; empty for most configurations.

    Data sets and weights are read as data (no loading scripts, no pickles), and `evaluation.verifier` is one of the rewards.
    """
    remote = [Code(key="model.trust_remote_code", value="true")] if config.model.trust_remote_code else []
    rewards = [
        Code(key=f"rewards.{index}.fn", value=reward.fn, module=reward.fn.partition(":")[0])
        for index, reward in enumerate(config.rewards)
        if is_import_path(reward.fn)
    ]
    rules = [
        Code(key=f"monitor.rules.{index}.function", value=rule.function, module=rule.function.partition(":")[0])
        for index, rule in enumerate(config.monitor.rules)
        if rule.function is not None
    ]
    pythons = {"training.python": config.training.python, "rollout.vllm.python": config.rollout.vllm.python}
    return (*remote, *rewards, *rules, *(Code(key=key, value=python) for key, python in pythons.items() if python is not None))


def is_allowed(code: Code, modules: Collection[str]) -> bool:
    """Return whether code is of one of the modules: each stands for itself and what lies below it.

    >>> is_allowed(Code(key="rewards.0.fn", value="mine.short:f", module="mine.short"), ["mine"])
    True
    >>> is_allowed(Code(key="rewards.0.fn", value="mines:f", module="mines"), ["mine"])
    False
    """
    return code.module is not None and any(code.module == module or code.module.startswith(f"{module}.") for module in modules)
