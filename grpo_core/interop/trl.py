"""TRL 1.16's `GRPOConfig`, and the arguments of its script `trl grpo`: which key becomes which of ours.

Defaults are TRL's; a test compares them, and the names without a counterpart, with the installed TRL. Semantics are those of
`trl/trainer/grpo_trainer.py` 1.16.0, defaults of earlier releases those of the wheels of trl 0.17 to 1.15. The way back, from a
configuration of ours to what TRL's trainer is given, is `trl_export.py`.
"""

import math
from typing import Any, Literal

from grpo_core.interop import no_counterpart as tables
from grpo_core.interop.rules import (
    ALL_KEPT,
    ALPHA,
    CONTEXT,
    DROPOUT,
    NO_SCHEDULE,
    RANK,
    SCHEDULES,
    TARGETS,
    WHOLE_LAYERS,
    Entry,
    Number,
    Numbers,
    Positive,
    Rule,
    Settings,
    System,
    Texts,
    Whole,
    adam_betas,
    adapted_modules,
    adapter_dropout,
    also_tracked,
    by_key,
    convert_rewards,
    copied,
    dead,
    feature,
    in_steps,
    mapped,
    no_counterpart,
    overlong,
    read_elsewhere,
    renamed,
    vllm_or_embedded,
    warmup,
    weighted_names,
)

BATCH = "rollout.num_prompts_per_step, loss.minibatches"
SAMPLER = "loss.sampler_correction, loss.sampler_level, loss.sampler_bound"
SCALES = {"group": "group_std", "batch": "batch_std", "none": "none", True: "group_std", False: "none"}
NO_QUANTISATION = "no quantised weights here; nearest: model.dtype bfloat16, in which model.lora holds the frozen linear layers"
NO_ENTROPY = "no entropy bonus here; policy/entropy is measured"
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


def _length(settings: Settings, key: str) -> Entry:
    total, updates, epochs = _known_length(settings), _updates(settings), f"{settings['num_train_epochs']:g}"
    if total is None:
        return no_counterpart(
            "the length is num_train_epochs passes over data of unknown size: set training.steps to the prompts of the data x "
            f"{epochs} / rollout.num_prompts_per_step",
            differs=True,
        )
    if key == "num_train_epochs":
        return dead("max_steps overrides it")
    rounded = ", rounded up" if total % updates else ""
    counted = f"optimizer steps there, steps of {updates} optimizer steps here" if updates > 1 else ""
    return mapped({"training.steps": math.ceil(total / updates)}, f"{counted}{rounded}", differs=bool(rounded))


def _warm_up(settings: Settings, _key: str) -> Entry:
    """Convert the warm-up; `warmup_ratio` is older TRL's, and `warmup_steps` overrides it."""
    amount, kind = settings["warmup_steps"] or settings["warmup_ratio"], settings["lr_scheduler_type"]
    return warmup(amount, _known_length(settings), is_ignored=kind == "constant")


def _period(settings: Settings, key: str) -> Entry:
    kind = key.partition("_")[0]
    ours, strategy = {"save": "training.checkpoint_every", "eval": "evaluation.every_steps"}[kind], settings[f"{kind}_strategy"]
    if strategy == "no":
        return mapped({ours: None}, f"{kind}_strategy no; at the end there is one in any case")
    amount, total = settings[f"{kind}_steps"] or settings["logging_steps"], _known_length(settings)
    if strategy != "steps" or amount < 0 or (amount < 1 and total is None):
        return no_counterpart(f"a count of steps here, which the file does not tell; set {ours}")
    return in_steps(ours, amount if amount >= 1 else amount * (total or 0), _updates(settings))


def _mask_truncated(settings: Settings, key: str) -> Entry:
    """Convert the mask of truncated completions, which TRL counts wherever it divides by the number of completions."""
    loss_type = settings["loss_type"]
    counts = settings[key] and LOSS_TYPES.get(loss_type, "token-mean") != "token-mean"
    remark = f"under {loss_type} they still count in TRL's denominators, here they leave them" if counts else ""
    return mapped({"filtering.mask_truncated_completions": settings[key]}, remark, differs=counts)


def _ratio(settings: Settings, key: str) -> Entry:
    """Convert the level of the importance ratio, by which TRL also weights its KL term."""
    differs = settings[key] == "sequence" and settings["beta"] != 0 and settings["use_bias_correction_kl"]
    remark = "TRL weights its KL term by the sequence's ratio, too; here it is the token's" if differs else ""
    return mapped({"loss.ratio": settings[key]}, remark, differs=differs)


def _trl_reward(settings: Settings, name: str, weight: float) -> Entry:
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


def _rewards(settings: Settings, _key: str) -> Entry:
    """Convert the reward functions of `trl grpo`, with their weights, and its reward model."""
    names = [*filter(None, [settings["reward_model_name_or_path"]]), *(settings["reward_funcs"] or ())]
    if not names:
        return no_counterpart("the file names no reward functions; write them with their weights under rewards", differs=True)
    return convert_rewards(settings, weighted_names(settings, names), _trl_reward)


def _reference_sync(settings: Settings, key: str) -> Entry:
    if not settings["sync_ref_model"]:
        return mapped({"reference.sync_steps": None})
    found = in_steps("reference.sync_steps", settings["ref_model_sync_steps"], _updates(settings))
    return mapped(
        {**found.targets, **({"reference.mixup_alpha": settings["ref_model_mixup_alpha"]} if key == "sync_ref_model" else {})},
        found.remark,
        differs="rounded" in found.remark,
    )


def _dtype(settings: Settings, key: str) -> Entry:
    """Convert the compute type: bfloat16 autocast, or weights of that type."""
    is_mixed = settings["bf16"] if settings["bf16"] is not None else not settings["fp16"]
    if key == "dtype" and settings[key] not in ("float32", "bfloat16", None):
        return no_counterpart("set model.dtype to float32 or bfloat16", differs=True)
    if settings["dtype"] != "bfloat16":
        return mapped({"model.dtype": "bfloat16" if is_mixed else "float32"})
    return mapped(
        {"model.dtype": "bfloat16"}, "TRL keeps the weights themselves in bfloat16, here those that are trained are float32"
    )


def _context_window(settings: Settings, key: str) -> Entry:
    """Convert vLLM's context: what it leaves for the prompt is the longest prompt here."""
    window, completion = settings[key], settings["max_completion_length"]
    if settings["vllm_mode"] != "colocate":
        return dead("TRL reads it with vllm_mode colocate only")
    if settings["max_prompt_length"] is not None:
        return no_counterpart("max_prompt_length and max_completion_length together are the server's context here")
    return mapped({"rollout.max_prompt_tokens": window - (completion or window)}, "minus max_completion_length")


def _sampler_correction(settings: Settings, _key: str) -> Entry:
    if not settings["vllm_importance_sampling_correction"]:
        return mapped({"loss.sampler_correction": "none"})
    bound = settings["vllm_importance_sampling_cap"] or settings["vllm_importance_sampling_clip_max"]
    if bound is None:
        return no_counterpart("weights without an upper bound do not exist here", differs=True)
    level, _, treatment = settings["vllm_importance_sampling_mode"].partition("_")
    return mapped(
        {"loss.sampler_correction": treatment, "loss.sampler_level": level, "loss.sampler_bound": bound},
        "the KL term is not weighted there either",
    )


def _adapter_alpha(settings: Settings, _key: str) -> Entry:
    """Convert alpha; rsLoRA's scale alpha / sqrt(rank) is that of alpha x sqrt(rank) here."""
    if not settings["use_rslora"]:
        return mapped({ALPHA: settings["lora_alpha"]})
    return mapped({ALPHA: settings["lora_alpha"] * math.sqrt(settings["lora_r"])}, "alpha x sqrt(lora_r): the same scale")


def _trl_dropout(settings: Settings, key: str) -> Entry:
    return dead("disable_dropout switches it off") if settings["disable_dropout"] else adapter_dropout(settings, key)


RULES = (
    # rollouts
    copied("num_generations", "rollout.group_size", Positive, 8),
    *(Rule(key, kind, default, BATCH, batch) for key, kind, default in (
        ("per_device_train_batch_size", Positive, 8), ("gradient_accumulation_steps", Positive, 1),
        ("steps_per_generation", Positive | None, None), ("generation_batch_size", Positive | None, None),
    )),
    copied("max_completion_length", "rollout.max_completion_tokens", Positive | None, 512,
           unset="null is no bound there; set rollout.max_completion_tokens"),
    copied("max_prompt_length", "rollout.max_prompt_tokens", Positive | None, None, "there they are cut, here dropped",
           unset="null is no bound there; prompts above rollout.max_prompt_tokens are dropped here"),
    copied("temperature", "rollout.temperature", Number, 1.0),
    copied("top_p", "rollout.top_p", Number, 1.0),
    copied("top_k", "rollout.top_k", Whole | None, 0, zero_is_off=True),
    feature("min_p", Number | None, None, "no min-p sampling here", off=(0.0,)),
    feature("repetition_penalty", Number, 1.0, "no repetition penalty here: tokens come from the policy itself"),
    feature("generation_kwargs", Any, None, "no further sampling options here", off=({},)),
    feature("chat_template_kwargs", Any, None, "the chat template takes no arguments here", off=({},)),
    feature("max_tool_calling_iterations", Any, None, "no tools here"),
    # loss
    copied("beta", "loss.beta", Number, 0.0),
    copied("num_iterations", "loss.epochs_per_rollout", Positive, 1),
    copied("epsilon", "loss.clip_eps", Number, 0.2),
    copied("epsilon_high", "loss.clip_eps_high", Number | None, None),
    copied("delta", "loss.dual_clip", Number | None, None,
           "above 1 + epsilon_high, as it must be here, it acts on negative advantages only"),
    Rule("importance_sampling_level", Literal["token", "sequence"], "token", "loss.ratio", _ratio),
    renamed("use_bias_correction_kl", "loss.kl_correction", bool, True, {True: "importance", False: "none"},
            "k3 x ratio, with gradient, where true"),
    renamed("loss_type", "loss.aggregation",
            Literal["grpo", "dapo", "bnpo", "luspo", "dr_grpo", "cispo", "sapo", "vespo"], "dapo", LOSS_TYPES,
            "TRL divides by tokens of each micro-batch (bnpo) or of the generation batch (dapo)",
            otherwise="another objective; loss.aggregation stays at its default"),
    Rule("mask_truncated_completions", bool, False, "filtering.mask_truncated_completions", _mask_truncated),
    feature("off_policy_mask_threshold", Number | None, None, "no off-policy sequence mask here"),
    feature("top_entropy_quantile", Number, 1.0, "the loss is over every token here"),
    feature("entropy_coef", Number, 0.0, NO_ENTROPY),
    feature("use_adaptive_entropy", bool, False, NO_ENTROPY),
    renamed("scale_rewards", "advantage.scale", bool | Literal["group", "batch", "none"], "group", SCALES),
    feature("multi_objective_aggregation", str, "sum_then_normalize", "rewards are summed before they are normalised here"),
    # reference
    Rule("sync_ref_model", bool, False, "reference.sync_steps, reference.mixup_alpha", _reference_sync),
    Rule("ref_model_sync_steps", Positive, 512, "reference.sync_steps", _reference_sync, needs="sync_ref_model"),
    copied("ref_model_mixup_alpha", "reference.mixup_alpha", Number, 0.6, needs="sync_ref_model"),
    # vLLM
    Rule("use_vllm", bool, False, "rollout.engine", lambda settings, key: (
        vllm_or_embedded(settings["top_p"], settings["top_k"]) if settings[key] else {"rollout.engine": "embedded"})),
    read_elsewhere("vllm_mode", Literal["server", "colocate"], "colocate",
                   "a server of the run here, unless rollout.vllm.mode colocate is set, with a training.python that has vLLM"),
    Rule("vllm_max_model_length", Positive | None, None, "rollout.max_prompt_tokens", _context_window, needs="use_vllm",
         unset=CONTEXT),
    feature("vllm_structured_outputs_regex", str | None, None, "no pattern for completions here", needs="use_vllm"),
    *(Rule(f"vllm_importance_sampling_{key}", kind, default, SAMPLER, _sampler_correction, needs="use_vllm")
      for key, kind, default in (("correction", bool, True),
                                 ("mode", Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"],
                                  "sequence_mask"),
                                 ("clip_max", Number | None, 3.0), ("cap", Number | None, None))),
    feature("vllm_importance_sampling_clip_min", Number | None, None, "the sampler correction has no lower bound here",
            needs="use_vllm"),
    # optimizer
    copied("learning_rate", "optimizer.lr", Number, 1e-6),
    renamed("lr_scheduler_type", "optimizer.schedule", str, "linear", SCHEDULES, otherwise=NO_SCHEDULE),
    Rule("warmup_steps", Number, 0, "optimizer.warmup_steps", _warm_up),
    Rule("warmup_ratio", Number, 0.0, "optimizer.warmup_steps", _warm_up),
    copied("weight_decay", "optimizer.weight_decay", Number, 0.0),
    *adam_betas("adam_beta1", "adam_beta2"),
    feature("adam_epsilon", Number, 1e-8, "AdamW's epsilon is 1e-8 here"),
    copied("max_grad_norm", "optimizer.max_grad_norm", Number | None, 1.0, zero_is_off=True),
    feature("optim", str, "adamw_torch_fused", "the optimizer is AdamW here", off=("adamw_torch",)),
    feature("lr_scheduler_kwargs", Any, None, "schedules take no arguments here", off=({},)),
    feature("label_smoothing_factor", Number, 0.0, "no label smoothing here"),
    feature("neftune_noise_alpha", Number | None, None, "no noise on embeddings here"),
    feature("router_aux_loss_coef", Number | None, None, "no router loss here"),
    # training
    Rule("max_steps", Whole, -1, "training.steps", _length, reports_default=True),
    Rule("num_train_epochs", Number, 3.0, "", _length),
    copied("seed", "training.seed", Whole, 42),
    feature("shuffle_dataset", bool | None, True, "every pass over the prompts is a fresh permutation here"),
    Rule("save_strategy", str, "steps", "training.checkpoint_every", _period),
    Rule("save_steps", Number, 500, "training.checkpoint_every", _period),
    copied("save_total_limit", "training.keep_checkpoints", Positive | None, None, unset=ALL_KEPT),
    Rule("eval_strategy", str, "no", "evaluation.every_steps", _period),
    Rule("eval_steps", Number | None, None, "evaluation.every_steps", _period),
    read_elsewhere("logging_steps", Number, 10, "logging is by MLflow, every step"),
    copied("run_name", "tracking.run_name", str | None, None),
    also_tracked("report_to", "none"),
    Rule("bf16", bool | None, None, "model.dtype", _dtype),
    feature("fp16", bool, False, "no float16 here; model.dtype bfloat16 is nearest"),
    read_elsewhere("disable_dropout", bool, False, "dropout is off here in any case"),
    # the script `trl grpo`: model, rewards and data
    Rule("dtype", str | None, "float32", "model.dtype", _dtype),
    copied("trust_remote_code", "model.trust_remote_code", bool, False),
    copied("model_name_or_path", "model.source", str | None, None, unset="names no model"),
    feature("model_revision", str, "main", "the default revision is loaded here; give a local folder for another"),
    feature("model_init_kwargs", Any, None, "models are loaded without further arguments here", off=({},)),
    Rule("reward_funcs", Texts | None, None, "rewards[].fn, filtering.overlong_buffer_tokens", _rewards,
         unset="names no function; rewards stays at its default"),
    Rule("reward_model_name_or_path", str | None, None, "rewards[].fn", _rewards, unset="names no model"),
    Rule("reward_weights", Numbers | None, None, "rewards[].weight", _rewards, unset="every weight is 1"),
    Rule("dataset_name", str | None, None, "data.source, data.prompt_column, data.answer_column", lambda settings, key: (
            {"data.source": f"hub:{settings[key]}", "data.prompt_column": "prompt", "data.answer_column": None}),
         "where `prompt` is plain text, TRL applies no chat template: set data.chat_template to false", unset="names no data"),
    copied("dataset_config", "data.hub_config", str | None, None),
    copied("dataset_train_split", "data.hub_split", str, "train"),
    feature("datasets", Any, None, "one data source here", off=([],)),
    # adapters
    Rule("use_peft", bool, False, "model.lora",
         lambda settings, key: {RANK: settings["lora_r"]} if settings[key] else {"model.lora": None}),
    copied("lora_r", RANK, Positive, 16, needs="use_peft"),
    Rule("lora_alpha", Number, 32, ALPHA, _adapter_alpha, needs="use_peft"),
    Rule("use_rslora", bool, False, ALPHA, _adapter_alpha, needs="use_peft"),
    Rule("lora_dropout", Number, 0.05, DROPOUT, _trl_dropout, needs="use_peft", reports_default=True),
    Rule("lora_target_modules", Texts | None, None, TARGETS, lambda settings, key: (
            adapted_modules(settings[key]) if settings[key] else {TARGETS: ["q_proj", "v_proj"]}),
         "PEFT's own choice for Llama, Qwen, Mistral and Gemma", needs="use_peft"),
    feature("lora_target_parameters", Texts | None, None, "linear layers are adapted here, not single parameters", off=([],),
            needs="use_peft"),
    feature("lora_modules_to_save", Texts | None, None, WHOLE_LAYERS, off=([],), needs="use_peft"),
    feature("lora_task_type", str, "CAUSAL_LM", "a causal language model is trained here", needs="use_peft"),
    feature("use_dora", bool, False, "no DoRA here: an adapter has no trained norm of columns", needs="use_peft"),
    feature("load_in_8bit", bool, False, NO_QUANTISATION),
    feature("load_in_4bit", bool, False, NO_QUANTISATION),
)  # fmt: skip

ALIASES = {
    "torch_dtype": "dtype",
    "evaluation_strategy": "eval_strategy",
    "vllm_max_model_len": "vllm_max_model_length",
    "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
    "wandb_log_unique_prompts": "log_unique_prompts",
}

TRL = System(
    name="trl",
    title="TRL 1.16",
    version="trl 1.16.0, its GRPOConfig and the arguments of its script `trl grpo`",
    rules=RULES,
    ignored=tables.TRL,
    dead=by_key({"for scripts that read it; neither the trainer nor `trl grpo` does": "do_train do_predict"}),
    assumptions=assumed_processes,
    aliases=ALIASES,
)
