"""TRL's values that depend on more than one key, or mean something else here.

Each function converts the keys that depend on each other; `export_...` is its way back.
"""

from grpo_core.config.schema import RunConfig
from grpo_core.interop.records import Conclusion, Settings, mapped, no_counterpart
from grpo_core.interop.rewards import Counterpart, convert_rewards, none, trl_reward, weighted_names
from grpo_core.interop.rules import in_steps
from grpo_core.interop.trl.batches import read_batch, updates_per_step

LOSS_TYPES = {
    "grpo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "luspo": "seq-mean-token-sum",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""{TRL's `loss_type`: our aggregation}; of two names of one value the first is the way back."""
OTHER_OBJECTIVES = {
    "cispo": "clipped weights on the log-probability, not a clipped surrogate",
    "sapo": "a soft gate instead of clipping",
    "vespo": "sequence-level soft weights instead of clipping",
}
CORRECTIONS = {True: "importance", False: "none"}
SCALES = {"group": "group_std", "batch": "batch_std", "none": "none", True: "group_std", False: "none"}


def aggregation(settings: Settings, key: str) -> Conclusion:
    """Convert the loss type."""
    loss_type = settings[key]
    if loss_type in OTHER_OBJECTIVES:
        return no_counterpart(f"{OTHER_OBJECTIVES[loss_type]}; loss.aggregation stays at its default", differs=True)
    remarks = {
        "bnpo": "TRL divides by the tokens of each micro-batch, here by those of the optimizer step",
        "dr_grpo": "the constant is rollout.max_completion_tokens",
    }
    if read_batch(settings).minibatches > 1:
        remarks["dapo"] = "TRL divides by its share of the generation batch's tokens, here by the optimizer step's tokens"
    return mapped({"loss.aggregation": LOSS_TYPES[loss_type]}, remarks.get(loss_type, ""))


def mask_truncated(settings: Settings, key: str) -> Conclusion:
    """Convert the mask of truncated completions, which TRL counts wherever it divides by the number of completions."""
    loss_type = settings["loss_type"]
    counts = settings[key] and LOSS_TYPES.get(loss_type, "token-mean") != "token-mean"
    return mapped(
        {"filtering.mask_truncated_completions": settings[key]},
        f"under {loss_type} they still count in TRL's denominators, here they leave them" if counts else "",
        differs=counts,
    )


def ratio_and_kl(settings: Settings, key: str) -> Conclusion:
    """Convert the level of the importance ratio, and the correction of the KL term by it."""
    level, is_corrected, beta = settings["importance_sampling_level"], settings["use_bias_correction_kl"], settings["beta"]
    if key == "importance_sampling_level":
        is_broadcast = level == "sequence" and beta != 0 and is_corrected
        remark = "TRL weights its KL term by the sequence's ratio, too; here it is the token's" if is_broadcast else ""
        return mapped({"loss.ratio": level}, remark, differs=is_broadcast)
    remark = "k3 x ratio, with gradient" if is_corrected else ""
    return mapped({"loss.kl_correction": CORRECTIONS[is_corrected]}, remark if beta else "no effect while loss.beta is 0")


def rewards(settings: Settings, _key: str) -> Conclusion:
    """Convert the reward functions of `trl grpo`, with their weights, and its reward model."""
    names, model = settings["reward_funcs"] or (), settings["reward_model_name_or_path"]
    if not names and not model:
        return no_counterpart("the file names no reward functions; write them with their weights under rewards", differs=True)
    others = [model] if model else []
    weighted = weighted_names(settings, [*others, *names])

    def find(_: Settings, name: str, weight: float) -> Counterpart:
        return (
            none("no reward models here; write a function around it") if name == model else trl_reward(settings, name, weight)
        )

    return convert_rewards(settings, weighted, find)


def export_reward_weights(config: RunConfig, _key: str) -> list[float]:
    """Return the weights; the functions themselves are given to the trainer as objects."""
    return [reward.weight for reward in config.rewards]


def reference_sync(settings: Settings, key: str) -> Conclusion:
    """Convert whether and how often the reference follows the policy."""
    if not settings["sync_ref_model"]:
        return mapped({"reference.sync_steps": None})
    steps, remark = in_steps(settings["ref_model_sync_steps"], read_batch(settings).updates, "a sync")
    differs = "rounded" in remark
    there = {
        "TRL itself refuses it with beta 0": settings["beta"] == 0,
        "TRL itself has no reference model to synchronise with use_peft": settings["use_peft"],
    }
    remark = "; ".join(filter(None, (remark, *(reason for reason, holds in there.items() if holds))))
    alpha = {"reference.mixup_alpha": settings["ref_model_mixup_alpha"]} if key == "sync_ref_model" else {}
    return mapped({"reference.sync_steps": steps, **alpha}, remark, differs=differs)


def export_reference_sync(config: RunConfig, key: str) -> bool | int:
    """Return whether the reference is synchronised, or after how many optimizer steps."""
    sync_steps = config.reference.sync_steps
    return sync_steps is not None if key == "sync_ref_model" else (sync_steps or 1) * updates_per_step(config)


def export_schedule(config: RunConfig, _key: str) -> str:
    """Return the learning-rate schedule; TRL's `constant` ignores the warm-up."""
    schedule = config.optimizer.schedule
    return "constant_with_warmup" if schedule == "constant" and config.optimizer.warmup_steps else schedule


def dtype(settings: Settings, key: str) -> Conclusion:
    """Convert the compute type: bfloat16 autocast, or weights of that type."""
    is_mixed = settings["bf16"] if settings["bf16"] is not None else not settings["fp16"]
    has_low_weights = settings["dtype"] == "bfloat16"
    remark = "TRL keeps the weights themselves in bfloat16, here those that are trained are float32" if has_low_weights else ""
    if key == "dtype" and settings[key] not in ("float32", "bfloat16", None):
        nearest = "bfloat16" if is_mixed else "float32"
        return no_counterpart(f"set model.dtype to float32 or bfloat16; it is {nearest}", differs=True)
    return mapped({"model.dtype": "bfloat16" if is_mixed or has_low_weights else "float32"}, remark)


def dataset(settings: Settings, key: str) -> Conclusion:
    """Convert the data set of `trl grpo`."""
    return mapped(
        {"data.source": f"hub:{settings[key]}", "data.prompt_column": "prompt", "data.answer_column": None},
        "where `prompt` is plain text, TRL applies no chat template: set data.chat_template to false",
    )
