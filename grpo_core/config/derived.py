"""What follows from a configuration: whether a key was changed, how many updates, how beta compares with the advantages."""

import math
from typing import Literal

from grpo_core.config.names import MADE_ROWS
from grpo_core.config.schema import RunConfig
from grpo_core.config.section import MOST_ROWS, Section


def is_single_update(config: RunConfig) -> bool:
    """Return whether each rollout is used for one optimizer step, so that every ratio to the rollouts' policy is 1."""
    return config.loss.epochs_per_rollout == 1 and config.loss.minibatches == 1


def is_changed(section: Section, key: str) -> bool:
    """Return whether a key is not at its default."""
    return bool(getattr(section, key) != type(section).model_fields[key].get_default(call_default_factory=True))


def sampler_treatment(config: RunConfig) -> Literal["none", "truncate", "mask"]:
    """Return how the loss treats the weights between sampler and trainer; null stands for what the sampler needs.

    In bfloat16 another engine's kernels give other probabilities than the trainer's, by more than the last digits.
    """
    differs = config.model.dtype == "bfloat16" and config.rollout.engine == "vllm"
    return config.loss.sampler_correction or ("truncate" if differs else "none")


def reference_moves(config: RunConfig) -> bool:
    """Return whether the reference may become another policy than the initial one during a run."""
    sync = config.reference.sync_steps
    return has_sync_rule(config) or (sync is not None and sync <= config.training.steps)


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


def has_sync_rule(config: RunConfig) -> bool:
    """Return whether a rule of the monitor may synchronise the reference."""
    return any(rule.action == "sync" for rule in config.monitor.rules)


def reference_moments(config: RunConfig) -> int | str | None:
    """Return when the reference is synchronised: every so many steps, `by rule`, both in words, or None = never."""
    steps = config.reference.sync_steps
    if not has_sync_rule(config):
        return steps
    return "by rule" if steps is None else f"{steps} and by rule"


def starts_server(config: RunConfig) -> bool:
    """Return whether the run starts a vLLM server, or uses the one that its sweep lends to it."""
    return config.rollout.engine == "vllm" and config.rollout.vllm.mode == "server" and config.rollout.vllm.url is None


def longest_row(config: RunConfig) -> int:
    """Return the tokens of the longest prompt and completion together: the context that a sampler needs."""
    return config.rollout.max_prompt_tokens + config.rollout.max_completion_tokens


def most_prompts(config: RunConfig) -> tuple[int, int]:
    """Return how many (training, held-out) prompts there are at most."""
    data = config.data
    rows = data.size or (MADE_ROWS if data.source.startswith("reasoning_gym:") else MOST_ROWS)
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


def effective_beta(config: RunConfig, zero_std_frac: float = 0.0) -> float:
    """Return what beta weighs beside the advantages: beta over their root mean square; NaN where that is not known.

    It is known where the spread of each group divides its own advantages. A share of groups without variance scales their mean
    square by what is left.

    Args:
        config: of the run.
        zero_std_frac: measured share of groups whose rewards are all equal, in [0, 1].
    """
    factor = advantage_rms_factor(config)
    if factor is None or not 0 <= zero_std_frac < 1:
        return math.nan
    return config.loss.beta / (factor * math.sqrt(1 - zero_std_frac))


def weight_of_kl(config: RunConfig) -> str:
    """Return, in words, what one token's KL weighs beside one token's surrogate, and per completion of n tokens."""
    beta, longest = config.loss.beta, config.rollout.max_completion_tokens
    return {
        "seq-mean-token-mean": f"{beta:g} x mean KL per token, whatever the length",
        "token-mean": f"{beta:g} x mean KL per token over the batch; long completions weigh more",
        "seq-mean-token-sum": f"{beta:g} x KL per completion (grows with its length)",
        "seq-mean-token-sum-norm": f"{beta:g} x KL per completion / {longest} (grows with its length)",
    }[config.loss.aggregation]
