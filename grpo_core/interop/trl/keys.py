"""TRL 1.16's `GRPOConfig`, and the arguments of its script `trl grpo`: which key becomes which of ours, and the way back.

One table for both directions: `grpo import-config` converts a file with it, `training.engine: trl` a configuration of ours
(`trl_arguments`), the option table of the documentation shows its names. What of ours TRL has no key for is in
`config/trl_limits.py`.

Defaults are TRL's; a test compares them, and the names in `ignored.py`, with the installed TRL. Semantics are those of
`trl/trainer/grpo_trainer.py` 1.16.0. Values that depend on several keys are in `batches.py` and `derived.py`, vLLM's keys in
`vllm.py`.
"""

from pathlib import Path
from typing import Any

from grpo_core.config.schema import RunConfig
from grpo_core.config.trl_limits import FIXED, FIXED_KL, NO_OPTION
from grpo_core.interop.records import Rule, System, no_counterpart
from grpo_core.interop.rules import (
    ALL_KEPT,
    NO_SCHEDULE,
    OFF,
    SCHEDULES,
    adam_betas,
    anything,
    choice,
    copied,
    feature,
    flag,
    named,
    number,
    numbers,
    optional,
    positive,
    renamed,
    same,
    text,
    texts,
    whole,
    without,
)
from grpo_core.interop.trl import batches, derived
from grpo_core.interop.trl.ignored import DEAD, IGNORED
from grpo_core.interop.trl.lora import LORA
from grpo_core.interop.trl.older import ALIASES, OLDER, OLDER_IGNORED
from grpo_core.interop.trl.vllm import VLLM

BATCH = "rollout.num_prompts_per_step, loss.minibatches"
BATCH_REMARK = (
    "prompts of a step = per_device_train_batch_size x processes x steps_per_generation (gradient_accumulation_steps if "
    "absent) / num_generations; minibatches = steps_per_generation / gradient_accumulation_steps"
)

ROLLOUT = (
    copied("num_generations", "rollout.group_size", positive, 8),
    Rule("per_device_train_batch_size", positive, 8, batches.batch, BATCH, BATCH_REMARK, export=batches.export_batch),
    Rule("gradient_accumulation_steps", positive, 1, batches.batch, BATCH, BATCH_REMARK, export=batches.export_batch),
    Rule("steps_per_generation", optional(positive), None, batches.batch, BATCH, BATCH_REMARK, export=batches.export_batch),
    Rule("generation_batch_size", optional(positive), None, batches.batch, BATCH, BATCH_REMARK),
    copied("max_completion_length", "rollout.max_completion_tokens", optional(positive), 512,
           unset=no_counterpart("null is no bound there; set rollout.max_completion_tokens", differs=True)),
    copied("temperature", "rollout.temperature", number, 1.0),
    copied("top_p", "rollout.top_p", number, 1.0),
    copied("top_k", "rollout.top_k", optional(whole), 0, "0 = off there, null here", report="", zero_is_off=True),
    feature("min_p", optional(number), None, "no min-p sampling here", off=(None, 0, 0.0)),
    feature("repetition_penalty", number, 1.0, "no repetition penalty here: tokens come from the policy itself"),
    feature("generation_kwargs", anything, None, "no further sampling options here", off=(None, {})),
    feature("chat_template_kwargs", anything, None, "the chat template takes no arguments here", off=(None, {})),
    feature("max_tool_calling_iterations", anything, None, "no tools here"),
)  # fmt: skip

LOSS = (
    copied("beta", "loss.beta", number, 0.0),
    copied("num_iterations", "loss.epochs_per_rollout", positive, 1),
    copied("epsilon", "loss.clip_eps", number, 0.2),
    copied("epsilon_high", "loss.clip_eps_high", optional(number), None),
    copied("delta", "loss.dual_clip", optional(number), None,
           "above 1 + epsilon_high, as it must be here, it acts on negative advantages only"),
    Rule("importance_sampling_level", choice("token", "sequence"), "token", derived.ratio_and_kl, "loss.ratio",
         "with `sequence`, TRL also weights its KL term by the sequence's ratio; here always by the token's",
         export=same("loss.ratio")),
    Rule("use_bias_correction_kl", flag, True, derived.ratio_and_kl, "loss.kl_correction",
         "true = importance (k3 x ratio, with gradient), false = none",
         export=named("loss.kl_correction", derived.CORRECTIONS)),
    Rule("loss_type", choice(*derived.LOSS_TYPES, *derived.OTHER_OBJECTIVES), "dapo", derived.aggregation, "loss.aggregation",
         "grpo = seq-mean-token-mean, dapo = token-mean, bnpo = token-mean (TRL: of each micro-batch), dr_grpo = "
         "seq-mean-token-sum-norm, luspo = seq-mean-token-sum; cispo, sapo and vespo are other objectives",
         export=named("loss.aggregation", derived.LOSS_TYPES)),
    Rule("mask_truncated_completions", flag, False, derived.mask_truncated, "filtering.mask_truncated_completions",
         "under grpo, dr_grpo and luspo masked rows stay in TRL's denominators",
         export=same("filtering.mask_truncated_completions")),
    feature("off_policy_mask_threshold", optional(number), None, "no off-policy sequence mask here"),
    feature("top_entropy_quantile", number, 1.0, "the loss is over every token here"),
    feature("entropy_coef", number, 0.0, "no entropy bonus here; policy/entropy is measured"),
    feature("use_adaptive_entropy", flag, False, "no entropy bonus here; policy/entropy is measured"),
)  # fmt: skip

ADVANTAGE = (
    renamed("scale_rewards", "advantage.scale", choice(*derived.SCALES), "group", derived.SCALES,
            "group = group_std, batch = batch_std, none = none; true and false are group and none"),
    feature("multi_objective_aggregation", text, "sum_then_normalize", "rewards are summed before they are normalised here"),
    Rule("reward_weights", optional(numbers), None, derived.rewards, "rewards[].weight",
         "needs the names of the functions: reward_funcs", unset=no_counterpart(OFF), export=derived.export_reward_weights),
)  # fmt: skip

REFERENCE = (
    Rule("sync_ref_model", flag, False, derived.reference_sync, "reference.sync_steps, reference.mixup_alpha",
         export=derived.export_reference_sync),
    Rule("ref_model_sync_steps", positive, 512, derived.reference_sync, "reference.sync_steps",
         "optimizer steps there, steps (one batch of rollouts) here; does nothing without sync_ref_model",
         needs=without("sync_ref_model"), export=derived.export_reference_sync),
    copied("ref_model_mixup_alpha", "reference.mixup_alpha", number, 0.6,
           "the same formula, but in float32 here; does nothing without sync_ref_model", report="",
           needs=without("sync_ref_model")),
)  # fmt: skip

OPTIMIZER = (
    copied("learning_rate", "optimizer.lr", number, 1e-6),
    renamed("lr_scheduler_type", "optimizer.schedule", text, "linear", SCHEDULES,
            "constant, constant_with_warmup, linear and cosine", otherwise=NO_SCHEDULE, export=derived.export_schedule),
    Rule("warmup_steps", number, 0, batches.warmup, "optimizer.warmup_steps",
         "optimizer steps; below 1 a share of all of them; TRL's `constant` ignores it", export=same("optimizer.warmup_steps")),
    copied("weight_decay", "optimizer.weight_decay", number, 0.0),
    *adam_betas("adam_beta1", "adam_beta2"),
    feature("adam_epsilon", number, 1e-8, "AdamW's epsilon is 1e-8 here"),
    copied("max_grad_norm", "optimizer.max_grad_norm", optional(number), 1.0, "0 = never there, null here", report="",
           zero_is_off=True),
    feature("optim", text, "adamw_torch_fused", "the optimizer is AdamW here", off=("adamw_torch_fused", "adamw_torch")),
    feature("lr_scheduler_kwargs", anything, None, "schedules take no arguments here", off=(None, {})),
    feature("label_smoothing_factor", number, 0.0, "no label smoothing here"),
    feature("neftune_noise_alpha", optional(number), None, "no noise on embeddings here"),
    feature("router_aux_loss_coef", optional(number), None, "no router loss here"),
)  # fmt: skip

TRAINING = (
    Rule("max_steps", whole, -1, batches.length, "training.steps",
         "optimizer steps there, steps (one batch of rollouts) here; -1 = by num_train_epochs",
         export=batches.export_length, reports_default=True),
    Rule("num_train_epochs", number, 3.0, batches.length, "",
         "set training.steps to epochs x prompts / rollout.num_prompts_per_step; does nothing beside max_steps"),
    copied("seed", "training.seed", whole, 42),
    feature("shuffle_dataset", optional(flag), True, "every pass over the prompts is a fresh permutation here"),
    Rule("save_strategy", text, "steps", batches.checkpoints, "training.checkpoint_every",
         "a final checkpoint is written in any case", export=batches.export_period),
    Rule("save_steps", number, 500, batches.checkpoints, "training.checkpoint_every", "optimizer steps there, steps here",
         export=batches.export_period),
    copied("save_total_limit", "training.keep_checkpoints", optional(positive), None, "null = all there; here a number",
           report="", unset=ALL_KEPT),
    Rule("eval_strategy", text, "no", batches.evaluations, "evaluation.every_steps", export=batches.export_period),
    Rule("eval_steps", optional(number), None, batches.evaluations, "evaluation.every_steps",
         "optimizer steps there, steps here; with eval_strategy steps only", export=batches.export_period),
    copied("run_name", "tracking.run_name", optional(text), None),
)  # fmt: skip

PRECISION = (
    Rule("bf16", optional(flag), None, derived.dtype, "model.dtype",
         "null = true unless fp16; trained weights and optimizer state are float32 here in any case",
         export=named("model.dtype", {True: "bfloat16", False: "float32"})),
    feature("fp16", flag, False, "no float16 here; model.dtype bfloat16 is nearest"),
    feature("disable_dropout", flag, False, "dropout is off here in any case", off=(), differs=False),
)  # fmt: skip

SCRIPT = (
    Rule("dtype", optional(text), "float32", derived.dtype, "model.dtype",
         "type of the weights there; here those that are trained are float32 and this is the compute type"),
    copied("trust_remote_code", "model.trust_remote_code", flag, False),
    copied("model_name_or_path", "model.source", optional(text), None, "a folder or a hub id, as here", report="",
           unset=no_counterpart(OFF)),
    feature("model_revision", text, "main", "the default revision is loaded here; give a local folder for another"),
    feature("model_init_kwargs", anything, None, "models are loaded without further arguments here", off=(None, {})),
    *LORA,
    Rule("reward_funcs", optional(texts), None, derived.rewards, "rewards[].fn, filtering.overlong_buffer_tokens",
         "TRL's own functions as `trl.rewards:<name>` (they need trl installed), get_soft_overlong_punishment as "
         "filtering.overlong_buffer_tokens; `a.b.c` is `a.b:c` here; `grpo check` refuses any other until it is written",
         unset=no_counterpart("names no function; rewards stays at its default")),
    Rule("reward_model_name_or_path", optional(text), None, derived.rewards, "rewards[].fn",
         "no reward models here; write a function around it", unset=no_counterpart(OFF)),
    Rule("dataset_name", optional(text), None, derived.dataset, "data.source, data.prompt_column, data.answer_column",
         "hub:<name>; TRL reads the column `prompt` and gives rewards every other column by its own name. Where "
         "`prompt` is plain text, TRL applies no chat template: set data.chat_template to false", unset=no_counterpart(OFF)),
    copied("dataset_config", "data.hub_config", optional(text), None),
    copied("dataset_train_split", "data.hub_split", text, "train"),
    feature("datasets", anything, None, "one data source here", off=(None, [])),
)  # fmt: skip
"""Arguments of the script `trl grpo`: model, rewards and data, which the trainer itself is given as objects."""

GRPO_CONFIG = (*ROLLOUT, *LOSS, *ADVANTAGE, *REFERENCE, *VLLM, *OPTIMIZER, *TRAINING, *PRECISION)
"""Fields of `GRPOConfig`."""


def export_config(config: RunConfig) -> dict[str, Any]:
    """Return the fields of `GRPOConfig` that state what `config` does; importing them gives these keys of `config` again."""
    return {rule.key: rule.export(config, rule.key) for rule in GRPO_CONFIG if rule.export is not None}


def trl_arguments(config: RunConfig, *, prompt_width: int, on_cpu: bool, output: Path) -> dict[str, Any]:
    """Return the keyword arguments of `GRPOConfig` that mean the same as `config`.

    Optimizer and schedule are given to the trainer as objects as well, and those decide.

    Args:
        config: a configuration that `check_consistency` lets through.
        prompt_width: tokens of the longest prompt.
        on_cpu: keep TRL off the GPU.
        output: folder in which TRL may write.
    """
    rows_per_pass = _largest_divisor(
        batches.rows_per_minibatch(config),
        config.training.microbatch_tokens // (prompt_width + config.rollout.max_completion_tokens),
    )
    return {
        **export_config(config),
        **batches.in_passes(config, rows_per_pass),
        # This project writes checkpoints and evaluates; TRL trains, and logs the norm of gradients only where it clips.
        "save_strategy": "no",
        "eval_strategy": "no",
        "max_grad_norm": config.optimizer.max_grad_norm or float("inf"),
        "output_dir": str(output),
        "shuffle_dataset": False,  # the prompts come in this project's order
        "disable_dropout": True,
        "activation_checkpointing": False,
        "cast_lm_head_to_fp32": config.model.dtype == "bfloat16",
        "use_cpu": on_cpu,
        "logging_steps": 1,
        "logging_first_step": False,
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_num_workers": 0,
    }


def _largest_divisor(rows: int, most: int) -> int:
    """Return the largest divisor of `rows` that is at most `most`, at least 1: TRL's passes have equally many rows."""
    return max(divisor for divisor in range(1, rows + 1) if rows % divisor == 0 and (divisor <= most or divisor == 1))


OF_OUR_ENGINE = ("rollout.engine",)
"""What `training.engine: trl` does not do with TRL, although TRL can."""

TRL = System(
    name="trl",
    title="TRL 1.16",
    version="trl 1.16.0, its GRPOConfig and the arguments of its script `trl grpo`",
    rules=(*GRPO_CONFIG, *SCRIPT, *OLDER),
    ignored=(*IGNORED, *OLDER_IGNORED),
    dead=DEAD,
    always={key: reason for key, reason in (FIXED | FIXED_KL).items() if reason != NO_OPTION and key not in OF_OUR_ENGINE},
    assumptions=batches.assumed_processes,
    aliases=ALIASES,
)
