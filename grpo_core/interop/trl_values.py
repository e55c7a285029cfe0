"""TRL's values that depend on more than one key, or mean something else here: one function for keys that belong together."""

import math

from grpo_core.interop.rewards import convert_rewards, overlong, weighted_names
from grpo_core.interop.rules import Entry, Settings, dead, mapped, no_counterpart
from grpo_core.interop.shared import ALPHA, TARGETS, adapted_modules, adapter_dropout, in_steps, warmup

LOSS_TYPES = {
    "grpo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "luspo": "seq-mean-token-sum",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""{TRL's `loss_type`: our aggregation}."""
REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
"""Those of `trl.rewards` that are reward functions; the others of it make one."""
PERIODS = {"save": "training.checkpoint_every", "eval": "evaluation.every_steps"}


def _processes(settings: Settings) -> int:
    """Return the number of training processes: as given, as a resolved configuration implies it, else 1."""
    generated, windows = settings["generation_batch_size"], settings["steps_per_generation"]
    implied = generated // (settings["per_device_train_batch_size"] * windows) if generated and windows else 1
    return settings.processes or max(int(implied), 1)


def assumed_processes(settings: Settings) -> tuple[str, ...]:
    """Return a note if the number of processes was assumed."""
    known = settings.processes or (settings["generation_batch_size"] and settings["steps_per_generation"])
    return () if known else ("1 training process is assumed (a file does not tell; --processes N does)",)


def refuses_too(settings: Settings) -> str:
    """Return that the source system refuses these batch sizes, with so many processes."""
    return (
        f"{settings.system.title} refuses that as well with the number of its processes, here {_processes(settings)}; "
        "--processes N sets it"
    )


def batch(settings: Settings, _key: str) -> Entry:
    """Convert the batch sizes, all of them together.

    Raises:
        ConfigError: TRL would refuse them.
    """
    micro, group_size = settings["per_device_train_batch_size"] * _processes(settings), settings["num_generations"]
    accumulated, generated = settings["gradient_accumulation_steps"], settings["generation_batch_size"]
    windows = settings["steps_per_generation"] or (generated // micro if generated else accumulated)
    rows = micro * windows
    if generated not in (None, rows):
        reason = f"generation_batch_size: {generated} is no multiple of per_device_train_batch_size x processes = {micro}, or "
        raise settings.refuse(f"{reason}contradicts steps_per_generation; {refuses_too(settings)}")
    if rows % group_size:
        reason = f"num_generations: {group_size} does not divide the generation batch of {rows} completions"
        raise settings.refuse(f"{reason} ({micro} per micro-step x {windows}); {refuses_too(settings)}")
    minibatches, differs = math.ceil(windows / accumulated), windows % accumulated != 0
    remark = f"{rows} completions of one generation batch / {group_size} generations"
    if windows >= accumulated and differs:
        remark += f"; {windows} micro-steps are not whole optimizer steps of {accumulated}, here they are equal shares"
    elif differs and settings["num_iterations"] == 1 and accumulated % windows == 0:
        rows, differs = micro * accumulated, False
        remark = f"TRL generates {accumulated // windows} times for one optimizer step, which is one step here"
    elif differs:
        remark = "TRL's optimizer steps span several generation batches; here each batch has its own"
    return mapped(
        {"rollout.num_prompts_per_step": rows // group_size, "loss.minibatches": minibatches}, remark, differs=differs
    )


def _updates(settings: Settings) -> int:
    """Return the optimizer steps on one batch of rollouts."""
    return int(batch(settings, "").targets["loss.minibatches"] * settings["num_iterations"])


def _known_length(settings: Settings) -> int | None:
    """Return the optimizer steps of the whole run; None where they depend on the size of the data."""
    return settings["max_steps"] if settings["max_steps"] > 0 else None


def length(settings: Settings, key: str) -> Entry:
    """Convert the length of the run."""
    total, updates = _known_length(settings), _updates(settings)
    if total is None:
        reason = (
            "the length is num_train_epochs passes over data of unknown size: set training.steps to the prompts of the data x "
        )
        return no_counterpart(f"{reason}{settings['num_train_epochs']:g} / rollout.num_prompts_per_step", differs=True)
    if key == "num_train_epochs":
        return dead("max_steps overrides it")
    steps = math.ceil(total / updates)
    is_uneven = steps * updates != total
    counted = f"optimizer steps there, steps of {updates} optimizer steps here" if updates > 1 else ""
    return mapped({"training.steps": steps}, f"{counted}{', rounded up' if is_uneven else ''}", differs=is_uneven)


def warm_up(settings: Settings, _key: str) -> Entry:
    """Convert the warm-up; `warmup_ratio` is older TRL's, and `warmup_steps` overrides it."""
    amount = settings["warmup_steps"] or settings["warmup_ratio"]
    return warmup(amount, _known_length(settings), is_ignored=settings["lr_scheduler_type"] == "constant")


def period(settings: Settings, key: str) -> Entry:
    """Convert when checkpoints are written (`save_...`) or the policy is evaluated (`eval_...`)."""
    kind = key.partition("_")[0]
    ours, strategy = PERIODS[kind], settings[f"{kind}_strategy"]
    if strategy == "no":
        return mapped({ours: None}, f"{kind}_strategy no; at the end there is one in any case")
    amount, total = settings[f"{kind}_steps"] or settings["logging_steps"], _known_length(settings)
    if strategy != "steps" or amount < 0 or (amount < 1 and total is None):
        return no_counterpart(f"a count of steps here, which the file does not tell; set {ours}")
    steps, remark = in_steps(amount if amount >= 1 else amount * (total or 0), _updates(settings))
    return mapped({ours: steps}, remark)


def mask_truncated(settings: Settings, key: str) -> Entry:
    """Convert the mask of truncated completions, which TRL counts wherever it divides by the number of completions."""
    loss_type = settings["loss_type"]
    counts = settings[key] and LOSS_TYPES.get(loss_type, "token-mean") != "token-mean"
    remark = f"under {loss_type} they still count in TRL's denominators, here they leave them" if counts else ""
    return mapped({"filtering.mask_truncated_completions": settings[key]}, remark, differs=counts)


def ratio(settings: Settings, key: str) -> Entry:
    """Convert the level of the importance ratio, by which TRL also weights its KL term."""
    differs = settings[key] == "sequence" and settings["beta"] != 0 and settings["use_bias_correction_kl"]
    remark = "TRL weights its KL term by the sequence's ratio, too; here it is the token's" if differs else ""
    return mapped({"loss.ratio": settings[key]}, remark, differs=differs)


def trl_reward(settings: Settings, name: str, weight: float) -> Entry:
    """Return what a reward function of `trl grpo` is here: TRL's own run as they are, and so does an import path."""
    module, _, function = name.rpartition(".")
    if name == settings["reward_model_name_or_path"]:
        return no_counterpart("no reward models here; write a function around it", differs=True)
    if module not in ("", "trl.rewards"):
        return mapped({"rewards": [{"fn": f"{module}:{function}"}]})
    if function == "get_soft_overlong_punishment":
        return overlong(settings, limit=1280, buffer=256, weight=weight)
    if function in REWARDS:
        return mapped({"rewards": [{"fn": f"trl.rewards:{function}"}]})
    known = ", ".join((*REWARDS, "get_soft_overlong_punishment"))
    return no_counterpart(f"`trl grpo` has {known}, and import paths", differs=True)


def rewards(settings: Settings, _key: str) -> Entry:
    """Convert the reward functions of `trl grpo`, with their weights, and its reward model."""
    names = [*filter(None, [settings["reward_model_name_or_path"]]), *(settings["reward_funcs"] or ())]
    if not names:
        return no_counterpart("the file names no reward functions; write them with their weights under rewards", differs=True)
    return convert_rewards(settings, weighted_names(settings, names), trl_reward)


def reference_sync(settings: Settings, key: str) -> Entry:
    """Convert whether and how often the reference follows the policy."""
    if not settings["sync_ref_model"]:
        return mapped({"reference.sync_steps": None})
    steps, remark = in_steps(settings["ref_model_sync_steps"], _updates(settings))
    alpha = {"reference.mixup_alpha": settings["ref_model_mixup_alpha"]} if key == "sync_ref_model" else {}
    return mapped({"reference.sync_steps": steps, **alpha}, remark, differs="rounded" in remark)


def dtype(settings: Settings, key: str) -> Entry:
    """Convert the compute type: bfloat16 autocast, or weights of that type."""
    is_mixed = settings["bf16"] if settings["bf16"] is not None else not settings["fp16"]
    has_low_weights = settings["dtype"] == "bfloat16"
    if key == "dtype" and settings[key] not in ("float32", "bfloat16", None):
        return no_counterpart("set model.dtype to float32 or bfloat16", differs=True)
    remark = "TRL keeps the weights themselves in bfloat16, here those that are trained are float32" if has_low_weights else ""
    return mapped({"model.dtype": "bfloat16" if is_mixed or has_low_weights else "float32"}, remark)


def context_window(settings: Settings, key: str) -> Entry:
    """Convert vLLM's context: what it leaves for the prompt is the longest prompt here."""
    window, completion = settings[key], settings["max_completion_length"]
    if settings["vllm_mode"] != "colocate":
        return dead("TRL reads it with vllm_mode colocate only")
    if settings["max_prompt_length"] is not None:
        return no_counterpart("max_prompt_length and max_completion_length together are the server's context here")
    return mapped({"rollout.max_prompt_tokens": window - (completion or window)}, "minus max_completion_length")


def sampler_correction(settings: Settings, _key: str) -> Entry:
    """Convert the weights between vLLM's and the trainer's probabilities."""
    if not settings["vllm_importance_sampling_correction"]:
        return mapped({"loss.sampler_correction": "none"})
    bound = settings["vllm_importance_sampling_cap"] or settings["vllm_importance_sampling_clip_max"]
    if bound is None:
        return no_counterpart("weights without an upper bound do not exist here", differs=True)
    level, _, treatment = settings["vllm_importance_sampling_mode"].partition("_")
    targets = {"loss.sampler_correction": treatment, "loss.sampler_level": level, "loss.sampler_bound": bound}
    return mapped(targets, "the KL term is not weighted there either")


def adapter_alpha(settings: Settings, _key: str) -> Entry:
    """Convert alpha; rsLoRA's scale alpha / sqrt(rank) is that of alpha x sqrt(rank) here."""
    if not settings["use_rslora"]:
        return mapped({ALPHA: settings["lora_alpha"]})
    return mapped({ALPHA: settings["lora_alpha"] * math.sqrt(settings["lora_r"])}, "alpha x sqrt(lora_r): the same scale")


def trl_dropout(settings: Settings, key: str) -> Entry:
    """Convert the dropout, which `disable_dropout` switches off in the adapter as well."""
    return dead("disable_dropout switches it off") if settings["disable_dropout"] else adapter_dropout(settings, key)


def target_modules(settings: Settings, key: str) -> Entry:
    """Convert the modules of an adapter."""
    if not settings[key]:
        return mapped({TARGETS: ["q_proj", "v_proj"]}, "PEFT's own choice for Llama, Qwen, Mistral and Gemma")
    return adapted_modules(settings[key])
