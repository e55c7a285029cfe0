"""TRL 1.16's `GRPOConfig`, and the arguments of its script `trl grpo`: which key becomes which of ours.

Defaults are TRL's; a test compares them, and the names in `ignored.py`, with the installed TRL. Semantics are those of
`trl/trainer/grpo_trainer.py` 1.16.0. Values that depend on several keys are in `batches.py`
and `derived.py`.
"""

from grpo_core.interop.readers import (
    anything,
    choice,
    flag,
    number,
    numbers,
    optional,
    positive,
    text,
    texts,
    whole,
)
from grpo_core.interop.records import System
from grpo_core.interop.rules import copied, feature, rule
from grpo_core.interop.trl import batches, derived
from grpo_core.interop.trl.ignored import DEAD, IGNORED

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
SAMPLER_MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
BATCH = "rollout.num_prompts_per_step, loss.minibatches"
BATCH_REMARK = (
    "prompts of a step = per_device_train_batch_size x processes x steps_per_generation (gradient_accumulation_steps if "
    "absent) / num_generations; minibatches = steps_per_generation / gradient_accumulation_steps"
)
SAMPLER_REMARK = "with use_vllm only; the KL term is not weighted there either"

ROLLOUT = (
    copied("num_generations", "rollout.group_size", positive, 8),
    rule("per_device_train_batch_size", positive, 8, batches.batch, BATCH, BATCH_REMARK),
    rule("gradient_accumulation_steps", positive, 1, batches.batch, BATCH, BATCH_REMARK),
    rule("steps_per_generation", optional(positive), None, batches.batch, BATCH, BATCH_REMARK),
    rule("generation_batch_size", optional(positive), None, batches.batch, BATCH, BATCH_REMARK),
    rule("max_completion_length", optional(positive), 512, derived.completion_length, "rollout.max_completion_tokens"),
    rule("max_prompt_length", optional(positive), None, derived.prompt_length, "rollout.max_prompt_tokens",
         "older TRL, not a field of 1.16; it cut prompts from the left, here they are dropped"),
    copied("temperature", "rollout.temperature", number, 1.0),
    copied("top_p", "rollout.top_p", number, 1.0),
    rule("top_k", optional(whole), 0, derived.top_k, "rollout.top_k", "0 = off there, null here"),
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
    rule("importance_sampling_level", choice("token", "sequence"), "token", derived.ratio, "loss.ratio",
         "with `sequence`, TRL also weights its KL term by the sequence's ratio; here always by the token's"),
    rule("use_bias_correction_kl", flag, True, derived.kl_correction, "loss.kl_correction",
         "true = importance (k3 x ratio, with gradient), false = none"),
    rule("loss_type", choice(*LOSS_TYPES), "dapo", derived.aggregation, "loss.aggregation",
         "grpo = seq-mean-token-mean, dapo = token-mean, bnpo = token-mean (TRL: of each micro-batch), dr_grpo = "
         "seq-mean-token-sum-norm, luspo = seq-mean-token-sum; cispo, sapo and vespo are other objectives"),
    rule("mask_truncated_completions", flag, False, derived.mask_truncated, "filtering.mask_truncated_completions",
         "under grpo and dr_grpo masked rows stay in TRL's denominators"),
    feature("off_policy_mask_threshold", optional(number), None, "no off-policy sequence mask here"),
    feature("top_entropy_quantile", number, 1.0, "the loss is over every token here"),
    feature("entropy_coef", number, 0.0, "no entropy bonus here; policy/entropy is measured"),
    feature("use_adaptive_entropy", flag, False, "no entropy bonus here; policy/entropy is measured"),
)  # fmt: skip

ADVANTAGE = (
    rule("scale_rewards", choice("group", "batch", "none", True, False), "group", derived.scale, "advantage.scale",
         "group = group_std, batch = batch_std, none = none; true and false are group and none"),
    feature("multi_objective_aggregation", text, "sum_then_normalize", "rewards are summed before they are normalised here"),
    rule("reward_funcs", optional(texts), None, derived.reward_functions, "rewards[].fn",
         "TRL's own functions as `trl.rewards:<name>` (they need trl installed); `a.b.c` is `a.b:c` here"),
    rule("reward_weights", optional(numbers), None, derived.reward_weights, "rewards[].weight",
         "needs the names of the functions: reward_funcs"),
    feature("reward_model_name_or_path", anything, None, "no reward models here; write a function around it"),
)  # fmt: skip

REFERENCE = (
    rule("sync_ref_model", flag, False, derived.reference_sync, "reference.sync_steps, reference.mixup_alpha"),
    rule("ref_model_sync_steps", positive, 512, derived.sync_steps, "reference.sync_steps",
         "optimizer steps there, steps (one batch of rollouts) here; does nothing without sync_ref_model"),
    rule("ref_model_mixup_alpha", number, 0.6, derived.mixup_alpha, "reference.mixup_alpha",
         "the same formula, but in float32 here; does nothing without sync_ref_model"),
)  # fmt: skip

SAMPLER = (
    rule("use_vllm", flag, False, derived.use_vllm, "",
         "completions come from the embedded sampler; the sampler correction is kept"),
    rule("vllm_importance_sampling_correction", flag, True, derived.sampler_correction,
         "loss.sampler_correction, loss.sampler_level, loss.sampler_bound", SAMPLER_REMARK),
    rule("vllm_importance_sampling_mode", choice(*SAMPLER_MODES), "sequence_mask", derived.sampler_correction,
         "loss.sampler_correction, loss.sampler_level", SAMPLER_REMARK),
    rule("vllm_importance_sampling_clip_max", optional(number), 3.0, derived.sampler_correction, "loss.sampler_bound",
         SAMPLER_REMARK),
    rule("vllm_importance_sampling_cap", optional(number), None, derived.sampler_correction, "loss.sampler_bound",
         "the older name of vllm_importance_sampling_clip_max, which it overrides"),
    rule("vllm_importance_sampling_clip_min", optional(number), None, derived.sampler_lower_bound, "",
         "the sampler correction has no lower bound here"),
)  # fmt: skip

OPTIMIZER = (
    copied("learning_rate", "optimizer.lr", number, 1e-6),
    rule("lr_scheduler_type", text, "linear", batches.schedule, "optimizer.schedule",
         "constant, constant_with_warmup, linear and cosine"),
    rule("warmup_steps", number, 0, batches.warmup, "optimizer.warmup_steps",
         "optimizer steps; below 1 a share of all of them; TRL's `constant` ignores it"),
    rule("warmup_ratio", number, 0.0, batches.warmup_ratio, "optimizer.warmup_steps",
         "older TRL, not a field of 1.16, which writes a share as warmup_steps below 1"),
    copied("weight_decay", "optimizer.weight_decay", number, 0.0),
    rule("adam_beta1", number, 0.9, derived.adam_betas, "optimizer.adam_betas"),
    rule("adam_beta2", number, 0.999, derived.adam_betas, "optimizer.adam_betas"),
    feature("adam_epsilon", number, 1e-8, "AdamW's epsilon is 1e-8 here"),
    rule("max_grad_norm", optional(number), 1.0, derived.max_grad_norm, "optimizer.max_grad_norm",
         "0 = never there, null here"),
    feature("optim", text, "adamw_torch_fused", "the optimizer is AdamW here", off=("adamw_torch_fused", "adamw_torch")),
    feature("lr_scheduler_kwargs", anything, None, "schedules take no arguments here", off=(None, {})),
    feature("label_smoothing_factor", number, 0.0, "no label smoothing here"),
    feature("neftune_noise_alpha", optional(number), None, "no noise on embeddings here"),
    feature("router_aux_loss_coef", optional(number), None, "no router loss here"),
)  # fmt: skip

TRAINING = (
    rule("max_steps", whole, -1, batches.steps, "training.steps",
         "optimizer steps there, steps (one batch of rollouts) here; -1 = by num_train_epochs", reports_default=True),
    rule("num_train_epochs", number, 3.0, batches.epochs, "",
         "set training.steps to epochs x prompts / rollout.num_prompts_per_step; does nothing beside max_steps"),
    copied("seed", "training.seed", whole, 42),
    feature("shuffle_dataset", optional(flag), True, "every pass over the prompts is a fresh permutation here"),
    rule("save_strategy", text, "steps", batches.save_strategy, "training.checkpoint_every",
         "a final checkpoint is written in any case"),
    rule("save_steps", number, 500, batches.save_steps, "training.checkpoint_every", "optimizer steps there, steps here"),
    rule("save_total_limit", optional(positive), None, batches.keep_checkpoints, "training.keep_checkpoints",
         "null = all there; here a number"),
    rule("eval_strategy", text, "no", batches.eval_strategy, "evaluation.every_steps"),
    rule("eval_steps", optional(number), None, batches.eval_steps, "evaluation.every_steps",
         "optimizer steps there, steps here; with eval_strategy steps only"),
    copied("run_name", "tracking.run_name", optional(text), None),
)  # fmt: skip

MODEL_AND_DATA = (
    rule("bf16", optional(flag), None, derived.dtype, "model.dtype",
         "null = true unless fp16; weights and optimizer state are float32 here in any case"),
    rule("fp16", flag, False, derived.fp16, "", "no float16 here; use bfloat16"),
    rule("dtype", optional(text), "float32", derived.dtype, "model.dtype",
         "type of the weights there; here they are float32 and this is the compute type"),
    copied("trust_remote_code", "model.trust_remote_code", flag, False),
    rule("model_name_or_path", optional(text), None, derived.model_source, "model.source", "a folder or a hub id, as here"),
    feature("model_revision", text, "main", "the default revision is loaded here; give a local folder for another"),
    feature("model_init_kwargs", anything, None, "models are loaded without further arguments here", off=(None, {})),
    feature("use_peft", flag, False, "no LoRA here: every weight is trained"),
    feature("load_in_8bit", flag, False, "no quantised training here"),
    feature("load_in_4bit", flag, False, "no quantised training here"),
    rule("dataset_name", optional(text), None, derived.dataset, "data.source, data.prompt_column, data.answer_column",
         "hub:<name>; TRL reads the column `prompt` and gives rewards every other column by its own name. Where "
         "`prompt` is plain text, TRL applies no chat template: set data.chat_template to false"),
    copied("dataset_config", "data.hub_config", optional(text), None),
    copied("dataset_train_split", "data.hub_split", text, "train"),
    feature("datasets", anything, None, "one data source here", off=(None, [])),
)  # fmt: skip

TRL = System(
    name="trl",
    title="TRL 1.16",
    rules=(*ROLLOUT, *LOSS, *ADVANTAGE, *REFERENCE, *SAMPLER, *OPTIMIZER, *TRAINING, *MODEL_AND_DATA),
    ignored=IGNORED,
    dead=DEAD,
    assumptions=batches.assumptions,
)
