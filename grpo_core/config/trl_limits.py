"""What `training.engine: trl` cannot do: each refused with its key, its value and the reason. Knows no trl.

Facts: TRL 1.16, `GRPOTrainer` and `GRPOConfig`. What it can do, and by which names, is `interop/trl_export.py`.
"""

from collections.abc import Iterator
from operator import attrgetter

from grpo_core.config.schema import RunConfig

_DEFAULTS = RunConfig()
NO_OPTION = "it has no such option"
FIXED = {
    "advantage.baseline": "its baseline is the group's mean",
    "advantage.advantage_eps": f"it always adds {_DEFAULTS.advantage.advantage_eps:g}",
    "advantage.reward_norm": NO_OPTION,
    "advantage.reward_clip": NO_OPTION,
    "advantage.whiten_advantages": NO_OPTION,
    "advantage.advantage_clip": NO_OPTION,
    "filtering.drop_zero_variance_groups": NO_OPTION,
    "filtering.overlong_buffer_tokens": NO_OPTION,
    "loss.sampler_correction": "its own needs vLLM",
    "reference.offload": "its reference stays on the device",
    "rollout.engine": "the weights that it trains are not handed to a server here",
    "training.gradient_checkpointing": "its switch puts the model into training mode, with dropout",
    "training.max_tokens": "it counts steps alone",
}
"""Keys that have to stay at their defaults, or none, and why."""
FIXED_KL = dict.fromkeys(("loss.kl_estimator", "loss.kl_placement"), "its KL term is k3 in the loss")
"""The same, where loss.beta is above 0."""


def trl_limits(config: RunConfig) -> Iterator[str]:
    """Yield a refusal for each setting that TRL's GRPOTrainer has no counterpart of."""
    fixed = FIXED | (FIXED_KL if config.loss.beta else {})
    changed = (key for key in fixed if attrgetter(key)(config) not in (attrgetter(key)(_DEFAULTS), "none"))
    alone = ((key, attrgetter(key)(config), fixed[key]) for key in changed)
    for key, value, reason in (*alone, *_together(config)):
        yield f"{key}: {value} is not possible with training.engine trl: {reason}; use the native engine"


def _together(config: RunConfig) -> list[tuple[str, object, str]]:
    """Return (key, value, reason) of what depends on more than one key, or is out of TRL's range."""
    loss, rollout, sync_steps, lora = config.loss, config.rollout, config.reference.sync_steps, config.model.lora
    rows = rollout.num_prompts_per_step * rollout.group_size
    is_masked, kl_is_corrected = config.filtering.mask_truncated_completions, loss.beta and loss.kl_correction == "importance"
    refusals = (
        (lora is not None, "model.lora", f"rank {lora.rank}" if lora else None,
         "the adapter's reference is kept by the native engine"),
        (is_masked and loss.aggregation != "token-mean", "filtering.mask_truncated_completions", True,
         f"under {loss.aggregation} it leaves masked completions in the denominator"),
        (kl_is_corrected and loss.ratio == "sequence", "loss.kl_correction", "importance",
         "with loss.ratio sequence it weights each token's KL by the sequence's ratio"),
        (loss.clip_eps is None, "loss.clip_eps", None, "it always clips"),
        (sync_steps is not None and not loss.beta, "reference.sync_steps", sync_steps, "with loss.beta 0 it has no reference"),
        (rollout.group_size < 2, "rollout.group_size", rollout.group_size, "it needs at least 2 completions of a prompt"),
        (rows % loss.minibatches, "loss.minibatches", loss.minibatches,
         f"it cuts the {rows} completions of a step into equal parts"),
    )  # fmt: skip
    return [(key, value, reason) for holds, key, value, reason in refusals if holds]
