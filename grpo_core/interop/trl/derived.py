"""TRL's values that depend on more than one key, or mean something else here."""

from grpo_core.interop.records import Outcome, Settings, dead, mapped, no_counterpart
from grpo_core.interop.rules import OFF, in_steps
from grpo_core.interop.trl.batches import read_batch

AGGREGATIONS = {
    "grpo": ("seq-mean-token-mean", ""),
    "bnpo": ("token-mean", "TRL divides by the tokens of each micro-batch, here by those of the optimizer step"),
    "dapo": ("token-mean", "TRL divides by its share of the generation batch's tokens, here by the optimizer step's tokens"),
    "dr_grpo": ("seq-mean-token-sum-norm", "the constant is rollout.max_completion_tokens"),
    "luspo": ("seq-mean-token-sum", ""),
}
OTHER_OBJECTIVES = {
    "cispo": "clipped weights on the log-probability, not a clipped surrogate",
    "sapo": "a soft gate instead of clipping",
    "vespo": "sequence-level soft weights instead of clipping",
}


def completion_length(settings: Settings, key: str) -> Outcome:
    """Convert the completion length; null has no counterpart."""
    if settings[key] is None:
        return no_counterpart("null is no bound there; set rollout.max_completion_tokens", differs=True)
    return mapped({"rollout.max_completion_tokens": settings[key]})


def prompt_length(settings: Settings, key: str) -> Outcome:
    """Convert the prompt length of older TRL."""
    if settings[key] is None:
        return no_counterpart("null is no bound there; prompts above rollout.max_prompt_tokens are dropped here")
    remark = "not a field of TRL 1.16; it cut prompts from the left, here longer ones are dropped"
    return mapped({"rollout.max_prompt_tokens": settings[key]}, remark)


def top_k(settings: Settings, key: str) -> Outcome:
    """Convert top-k: 0 is off there."""
    return mapped({"rollout.top_k": settings[key] or None})


def ratio(settings: Settings, key: str) -> Outcome:
    """Convert the level of the importance ratio."""
    broadcast = settings[key] == "sequence" and settings["beta"] != 0 and settings["use_bias_correction_kl"]
    remark = "TRL weights its KL term by the sequence's ratio, too; here it is the token's" if broadcast else ""
    return mapped({"loss.ratio": settings[key]}, remark, differs=bool(broadcast))


def kl_correction(settings: Settings, key: str) -> Outcome:
    """Convert the correction of the KL term."""
    remark = "k3 x ratio, with gradient" if settings[key] else ""
    if settings["beta"] == 0:
        remark = "no effect while loss.beta is 0"
    return mapped({"loss.kl_correction": "importance" if settings[key] else "none"}, remark)


def aggregation(settings: Settings, key: str) -> Outcome:
    """Convert the loss type."""
    if settings[key] in OTHER_OBJECTIVES:
        return no_counterpart(f"{OTHER_OBJECTIVES[settings[key]]}; loss.aggregation stays at its default", differs=True)
    value, remark = AGGREGATIONS[settings[key]]
    if settings[key] == "dapo" and read_batch(settings).minibatches == 1:
        remark = ""
    return mapped({"loss.aggregation": value}, remark)


def mask_truncated(settings: Settings, key: str) -> Outcome:
    """Convert the mask of truncated completions."""
    counts = settings[key] and settings["loss_type"] in ("grpo", "dr_grpo")
    remark = f"under {settings['loss_type']} they still count in TRL's denominators, here they leave them" if counts else ""
    return mapped({"filtering.mask_truncated_completions": settings[key]}, remark, differs=bool(counts))


def scale(settings: Settings, key: str) -> Outcome:
    """Convert what advantages are divided by."""
    names = {"group": "group_std", True: "group_std", "batch": "batch_std", "none": "none", False: "none"}
    return mapped({"advantage.scale": names[settings[key]]})


def reward_functions(settings: Settings, key: str) -> Outcome:
    """Convert the reward functions of `trl grpo`, with their weights."""
    names, weights = settings[key], settings["reward_weights"]
    if not names:
        return no_counterpart("names no function; rewards stays at its default")
    first = 1 if settings.given.get("reward_model_name_or_path") else 0
    if weights is not None and len(weights) != len(names) + first:
        raise settings.refuse(f"reward_weights: {len(weights)} weights for {len(names) + first} rewards; give one for each")
    rewards, targets, remark = [], {}, ""
    for index, name in enumerate(names):
        weight = 1.0 if weights is None else weights[index + first]
        if name == "get_soft_overlong_punishment":
            remark = (
                "get_soft_overlong_punishment is filtering.overlong_buffer_tokens here, below rollout.max_completion_tokens"
            )
            targets["filtering.overlong_buffer_tokens"] = 256
            if settings["max_completion_length"] != 1280 or weight != 1:
                remark += " (TRL's is at 1280 tokens, with its own weight)"
        else:
            rewards.append({"fn": _function(name), "weight": weight})
    return mapped({**targets, **({"rewards": rewards} if rewards else {})}, remark, differs="1280" in remark)


def _function(name: str) -> str:
    module, _, function = name.rpartition(".")
    return f"{module or 'trl.rewards'}:{function}"


def reward_weights(settings: Settings, key: str) -> Outcome:
    """Convert the weights, where the functions are known."""
    if settings[key] is None:
        return no_counterpart(OFF)
    if not settings["reward_funcs"]:
        return no_counterpart("the file names no reward functions; write them with their weights under rewards", differs=True)
    return reward_functions(settings, "reward_funcs")


def reference_sync(settings: Settings, key: str) -> Outcome:
    """Convert whether the reference follows the policy."""
    if not settings[key]:
        return mapped({"reference.sync_steps": None})
    steps, remark = in_steps(settings["ref_model_sync_steps"], read_batch(settings).updates, "a sync")
    if settings["beta"] == 0:
        remark = "; ".join(filter(None, (remark, "TRL itself refuses it with beta 0")))
    targets = {"reference.sync_steps": steps, "reference.mixup_alpha": settings["ref_model_mixup_alpha"]}
    return mapped(targets, remark, differs="rounded" in remark)


def sync_steps(settings: Settings, _key: str) -> Outcome:
    """Convert how often the reference is synchronised."""
    return _if_synced(settings, "reference.sync_steps")


def mixup_alpha(settings: Settings, _key: str) -> Outcome:
    """Convert the share of the policy in the new reference."""
    return _if_synced(settings, "reference.mixup_alpha")


def _if_synced(settings: Settings, ours: str) -> Outcome:
    if not settings["sync_ref_model"]:
        return dead("does nothing without sync_ref_model")
    whole = reference_sync(settings, "sync_ref_model")
    remark = whole.remark if ours == "reference.sync_steps" else ""
    return mapped({ours: whole.targets[ours]}, remark, differs=whole.differs and bool(remark))


def use_vllm(settings: Settings, key: str) -> Outcome:
    """Say what becomes of vLLM."""
    return no_counterpart("completions come from the embedded sampler" if settings[key] else OFF)


def sampler_correction(settings: Settings, _key: str) -> Outcome:
    """Convert the weights between vLLM's and the trainer's probabilities."""
    if not settings["use_vllm"]:
        return dead("does nothing without use_vllm")
    bound = settings["vllm_importance_sampling_clip_max"]
    bound = settings["vllm_importance_sampling_cap"] if settings["vllm_importance_sampling_cap"] is not None else bound
    if not settings["vllm_importance_sampling_correction"]:
        return mapped({"loss.sampler_correction": "none"})
    if bound is None:
        return no_counterpart("weights without an upper bound do not exist here", differs=True)
    level, _, treatment = settings["vllm_importance_sampling_mode"].partition("_")
    return mapped({"loss.sampler_correction": treatment, "loss.sampler_level": level, "loss.sampler_bound": bound})


def sampler_lower_bound(settings: Settings, key: str) -> Outcome:
    """Say what becomes of the lower bound of those weights."""
    if not settings["use_vllm"]:
        return dead("does nothing without use_vllm")
    given = settings[key] is not None
    return no_counterpart("the sampler correction has no lower bound here" if given else OFF, differs=given)


def adam_betas(settings: Settings, _key: str) -> Outcome:
    """Convert both decay rates."""
    return mapped({"optimizer.adam_betas": [settings["adam_beta1"], settings["adam_beta2"]]})


def max_grad_norm(settings: Settings, key: str) -> Outcome:
    """Convert gradient clipping: 0 is off there."""
    return mapped({"optimizer.max_grad_norm": settings[key] or None})


def dtype(settings: Settings, key: str) -> Outcome:
    """Convert the compute type: bfloat16 autocast, or weights of that type."""
    mixed = settings["bf16"] if settings["bf16"] is not None else not settings["fp16"]
    low = settings["dtype"] == "bfloat16"
    remark = "TRL keeps the weights themselves in bfloat16, here they are float32" if low else ""
    if key == "dtype" and settings[key] not in ("float32", "bfloat16", None):
        return no_counterpart(
            f"set model.dtype to float32 or bfloat16; it is {'bfloat16' if mixed else 'float32'}", differs=True
        )
    return mapped({"model.dtype": "bfloat16" if mixed or low else "float32"}, remark)


def fp16(settings: Settings, key: str) -> Outcome:
    """Say what becomes of float16."""
    return no_counterpart("no float16 here; model.dtype bfloat16 is nearest" if settings[key] else OFF, differs=settings[key])


def model_source(settings: Settings, key: str) -> Outcome:
    """Convert the model."""
    return mapped({"model.source": settings[key]}) if settings[key] else no_counterpart(OFF)


def dataset(settings: Settings, key: str) -> Outcome:
    """Convert the data set of `trl grpo`."""
    if not settings[key]:
        return no_counterpart(OFF)
    targets = {"data.source": f"hub:{settings[key]}", "data.prompt_column": "prompt", "data.answer_column": None}
    return mapped(targets, "where `prompt` is plain text, TRL applies no chat template: set data.chat_template to false")
