"""What `training.engine: trl` cannot do: each refused with its key, its value and the reason. Knows no trl.

Facts: TRL 1.16, `GRPOTrainer` and `GRPOConfig`.
"""

from collections.abc import Iterator

from grpo_core.config.schema import AdvantageConfig, FilterConfig, LossConfig, RunConfig

LOSS_TYPES = {
    "seq-mean-token-mean": "grpo",
    "token-mean": "dapo",
    "seq-mean-token-sum": "luspo",
    "seq-mean-token-sum-norm": "dr_grpo",
}
"""TRL's `loss_type` for each aggregation."""

_ADVANTAGE, _FILTER, _LOSS = AdvantageConfig(), FilterConfig(), LossConfig()


def trl_limits(config: RunConfig) -> Iterator[str]:
    """Yield a refusal for each setting that TRL's GRPOTrainer has no counterpart of."""
    for key, value, reason in (*_of_rewards(config), *_of_loss(config), *_of_batches(config)):
        yield f"{key}: {value} is not possible with training.engine trl: {reason}; use the native engine"


def _of_rewards(config: RunConfig) -> Iterator[tuple[str, object, str]]:
    advantage, filtering = config.advantage, config.filtering
    if advantage.baseline != "group_mean":
        yield "advantage.baseline", advantage.baseline, "its baseline is the group's mean"
    if advantage.advantage_eps != _ADVANTAGE.advantage_eps:
        yield "advantage.advantage_eps", advantage.advantage_eps, f"it always adds {_ADVANTAGE.advantage_eps:g}"
    for key in ("reward_norm", "reward_clip", "whiten_advantages", "advantage_clip"):
        if getattr(advantage, key) != getattr(_ADVANTAGE, key):
            yield f"advantage.{key}", getattr(advantage, key), "it has no such option"
    for key in ("drop_zero_variance_groups", "overlong_buffer_tokens"):
        if getattr(filtering, key) != getattr(_FILTER, key):
            yield f"filtering.{key}", getattr(filtering, key), "it has no such option"
    if filtering.mask_truncated_completions and config.loss.aggregation != "token-mean":
        yield (
            "filtering.mask_truncated_completions",
            True,
            f"under {config.loss.aggregation} it leaves masked completions in the denominator",
        )


def _of_loss(config: RunConfig) -> Iterator[tuple[str, object, str]]:
    loss = config.loss
    if loss.beta and (loss.kl_estimator != "k3" or loss.kl_placement != "loss"):
        yield "loss.kl_estimator", f"{loss.kl_estimator} in the {loss.kl_placement}", "its KL term is k3 in the loss"
    if loss.beta and loss.kl_correction == "importance" and loss.ratio == "sequence":
        yield "loss.kl_correction", "importance", "with loss.ratio sequence it weights each token's KL by the sequence's ratio"
    if loss.clip_eps is None:
        yield "loss.clip_eps", None, "it always clips"
    if loss.sampler_correction != _LOSS.sampler_correction:
        yield "loss.sampler_correction", loss.sampler_correction, "its own needs vLLM"
    if config.reference.sync_steps is not None and not loss.beta:
        yield "reference.sync_steps", config.reference.sync_steps, "with loss.beta 0 it has no reference"


def _of_batches(config: RunConfig) -> Iterator[tuple[str, object, str]]:
    rollout, minibatches = config.rollout, config.loss.minibatches
    if config.training.max_tokens is not None:
        yield "training.max_tokens", config.training.max_tokens, "it counts steps alone"
    rows = rollout.num_prompts_per_step * rollout.group_size
    if rollout.group_size < 2:
        yield "rollout.group_size", rollout.group_size, "it needs at least 2 completions of a prompt"
    if rows % minibatches:
        yield "loss.minibatches", minibatches, f"it cuts the {rows} completions of a step into equal parts"
