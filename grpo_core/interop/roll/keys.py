"""ROLL's RLVR pipeline (`RLVRConfig`, read at commit 8eb27cc2, 2026-08): which key becomes which of ours.

Keys are paths, as in `actor_train.training_args.learning_rate`. Semantics are those of `roll/pipeline/rlvr/` and
`roll/utils/functionals.py`; ROLL's documentation differs from its code in places, and the code counts. Values that depend on
several keys are in `batches.py` and `derived.py`, the engine that samples in `engine.py`.
"""

from grpo_core.interop.records import Rule, System, no_counterpart
from grpo_core.interop.roll import batches, derived
from grpo_core.interop.roll.engine import ENGINE
from grpo_core.interop.roll.ignored import DEAD, IGNORED
from grpo_core.interop.roll.lora import LORA
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
    number,
    optional,
    positive,
    renamed,
    text,
    texts,
    whole,
    without,
)

NORMS = choice("batch", "group", "running", None)
MODES = choice("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL_OF_THE_LOSS = "does nothing without add_token_level_kl; the KL of the loss is k3 in any case"
RATIOS = {"token": "token", "seq": "sequence"}
DTYPES = {"fp32": "float32", "bf16": "bfloat16", None: "bfloat16"}
ESTIMATORS = ("gae", "reinforce", "grpo", "gigpo", "step_reinforce", "agentic_reinforce")
TRAIN, INFER = "actor_train", "actor_infer.generating_args"
ARGS = f"{TRAIN}.training_args"
MINIBATCHES = "loss.minibatches"
MINIBATCH_REMARK = (
    "rollout_batch_size x group / (per_device_train_batch_size x gradient_accumulation_steps x data-parallel size); the latter "
    "from device_mapping and the model-parallel sizes"
)
CRITIC = "of the critic, which adv_estimator gae alone has; no critic here"

ROLLOUT = (
    copied("rollout_batch_size", "rollout.num_prompts_per_step", positive, 128, "prompts, not completions"),
    copied("num_return_sequences_in_group", "rollout.group_size", positive, 1),
    copied("prompt_length", "rollout.max_prompt_tokens", positive, 1024,
           "longer prompts are dropped; ROLL drops those below 6, too"),
    Rule("response_length", optional(positive), None, derived.lengths, "rollout.max_completion_tokens",
         "sequence_length overrides it"),
    Rule("sequence_length", optional(positive), None, derived.lengths, "rollout.max_completion_tokens",
         "minus prompt_length"),
    copied(f"{INFER}.temperature", "rollout.temperature", number, 0.95, "every log-probability here is of the scaled policy"),
    copied(f"{INFER}.top_p", "rollout.top_p", number, 0.7),
    copied(f"{INFER}.top_k", "rollout.top_k", optional(whole), 50, "0 and -1 = off there, null here", report="",
           zero_is_off=True),
    feature(f"{INFER}.do_sample", optional(flag), True, "completions are sampled here"),
    feature(f"{INFER}.num_beams", optional(whole), 1, "no beam search here"),
    feature(f"{INFER}.repetition_penalty", optional(number), 1.0, "no repetition penalty here"),
    feature(f"{INFER}.stop_strings", anything, None, "completions end with the end-of-sequence token here", off=(None, [])),
    feature("async_generation_ratio", number, 0, "rollouts are of the current policy here"),
)  # fmt: skip

ADVANTAGE = (
    Rule("adv_estimator", choice(*ESTIMATORS), "gae", derived.normalisation,
         "advantage.baseline, advantage.scale, advantage.advantage_eps",
         "grpo = group mean and group std; reinforce by norm_mean_type and norm_std_type, the nearest; gae and the "
         "agentic ones have none", reports_default=True),
    Rule("norm_mean_type", NORMS, None, derived.normalisation, "advantage.baseline",
         "adv_estimator grpo overwrites it with group"),
    Rule("norm_std_type", NORMS, None, derived.normalisation, "advantage.scale",
         "adv_estimator grpo overwrites it with group"),
    Rule("reward_clip", optional(number), None, derived.reward_clip, "advantage.reward_clip, advantage.advantage_clip",
         "ROLL clips after normalisation: under grpo it clips advantages, and above (G-1)/sqrt(G) nothing",
         unset=no_counterpart(OFF)),
    copied("whiten_advantages", "advantage.whiten_advantages", flag, False,
           "over the loss tokens of the step; ROLL: of each domain"),
    copied("advantage_clip", "advantage.advantage_clip", optional(number), None, "after whitening, as here"),
    feature("whiten_rewards", flag, False, "rewards are compared within groups here"),
    feature("use_reward_scaling", flag, False, "no running scale of rewards here"),
    feature("use_reward_norm", flag, False, "no running mean of rewards here"),
    feature("add_len_reward", flag, False, "write it as a reward function (`length` is one)"),
    feature("gamma", number, 1, "no discount here"),
    Rule("lambd", number, 0.95, derived.critic, "", CRITIC),
    Rule("value_clip", optional(number), None, derived.critic, "", CRITIC),
    Rule("critic_warmup", number, 0, derived.critic, "", CRITIC),
)  # fmt: skip

LOSS = (
    copied("ppo_epochs", "loss.epochs_per_rollout", positive, 1),
    Rule("pg_clip", number, 0.2, derived.clip, "loss.clip_eps, loss.dual_clip",
         "use_pg_clip_range replaces it, but not in the dual clip"),
    Rule("use_pg_clip_range", flag, False, derived.clip, "loss.clip_eps, loss.clip_eps_high"),
    copied("pg_clip_low", "loss.clip_eps", number, 0.2, "with use_pg_clip_range only", report="",
           needs=without("use_pg_clip_range")),
    copied("pg_clip_high", "loss.clip_eps_high", number, 0.2, "with use_pg_clip_range only", report="",
           needs=without("use_pg_clip_range")),
    Rule("dual_clip_loss", flag, False, derived.clip, "loss.dual_clip",
         "1 + 2 pg_clip, whatever pg_clip_high is; it must be above 1 + loss.clip_eps_high here"),
    renamed("importance_sampling", "loss.ratio", choice(*RATIOS), "token", RATIOS),
    Rule("loss_agg_mode", MODES, "seq-mean-token-mean", derived.loss_agg_mode, "loss.aggregation",
         "…-sum-norm divides by the padded width and not by the number of completions there; ROLL's documentation names"
         " another default than its code"),
    Rule("use_kl_loss", flag, False, derived.kl_loss, "loss.beta, loss.kl_correction", "false = beta 0; else correction none"),
    Rule("kl_loss_coef", number, 0, derived.kl_loss, "loss.beta, loss.kl_correction",
         "k3 without ratio, as here with loss.kl_correction none; ROLL clamps it to ±10; does nothing without "
         "use_kl_loss", needs=without("use_kl_loss")),
    Rule("add_token_level_kl", flag, False, derived.token_kl, "loss.kl_placement, loss.kl_estimator, loss.beta",
         "k1 in the reward, with beta = init_kl_coef; ROLL clips the token rewards once more at reward_clip"),
    Rule("init_kl_coef", number, 0.2, derived.token_kl, "loss.beta", "with add_token_level_kl only",
         needs=without("add_token_level_kl", "does nothing to the loss without add_token_level_kl")),
    Rule("kl_penalty", text, "kl", derived.token_kl, "loss.kl_estimator",
         "with add_token_level_kl only; kl = k1, others have none", needs=without("add_token_level_kl", KL_OF_THE_LOSS)),
    Rule("target_kl", optional(number), None, derived.adaptive_kl, "",
         "no adaptive KL coefficient here; a kl_budget rule of monitor.rules watches the KL"),
    Rule("kl_horizon", number, 10000, derived.adaptive_kl, "", "see target_kl"),
    copied("max_len_mask", "filtering.mask_truncated_completions", flag, False, "group statistics keep the rewards, as there"),
    feature("difficulty_mask", flag, False,
            "nearest: filtering.drop_zero_variance_groups, which drops groups of equal rewards"),
    feature("error_max_len_clip", flag, False, "nearest: filtering.mask_truncated_completions"),
    feature("entropy_loss_coef", number, 0, "no entropy bonus here; policy/entropy is measured"),
    feature("rl_loss_coef", number, 1.0, "the policy loss has no coefficient here; scale optimizer.lr"),
    feature("postive_loss_coef", number, 0, "no supervised term here"),
    feature("use_topr_neg_loss_coef", number, 0.0, "no TOPR here"),
    feature("use_topr_loss", flag, False, "no TOPR here"),
    feature("use_policy_loss_type", text, "PPO", "the loss is the clipped surrogate; loss.clip_eps null switches clipping off"),
    feature(f"{TRAIN}.pg_variant", anything, None, "the loss is the clipped surrogate here", off=(None, "ppo")),
    feature("difficulty_loss_weight", flag, False, "completions are not weighted by difficulty here"),
    feature("length_loss_weight", flag, False, "completions are not weighted by length; see loss.aggregation"),
    feature("train_infer_correction.filters", anything, [], "nearest: loss.sampler_correction mask", off=([], None)),
)  # fmt: skip

TRAINING = (
    Rule(f"{ARGS}.per_device_train_batch_size", positive, 8, batches.minibatches, MINIBATCHES, MINIBATCH_REMARK),
    Rule(f"{ARGS}.gradient_accumulation_steps", positive, 1, batches.minibatches, MINIBATCHES, MINIBATCH_REMARK),
    Rule(f"{TRAIN}.device_mapping", anything, None, batches.minibatches, MINIBATCHES,
         "as the data-parallel size; one training process here"),
    *batches.MODEL_PARALLEL,
    copied(f"{ARGS}.learning_rate", "optimizer.lr", number, 5e-5),
    renamed(f"{ARGS}.lr_scheduler_type", "optimizer.schedule", text, "linear", SCHEDULES,
            "constant, constant_with_warmup, linear and cosine",
            remarks=dict.fromkeys(("linear", "cosine"), "ends at 0"), otherwise=NO_SCHEDULE),
    Rule(f"{ARGS}.warmup_steps", number, 0, batches.actor_warmup, "optimizer.warmup_steps", "optimizer steps, as here"),
    Rule(f"{ARGS}.warmup_ratio", number, 0.0, batches.actor_warmup, "optimizer.warmup_steps",
         "of all optimizer steps; warmup_steps overrides it; older ROLL's default is 0.03"),
    copied(f"{ARGS}.weight_decay", "optimizer.weight_decay", number, 0.0),
    *adam_betas(f"{ARGS}.adam_beta1", f"{ARGS}.adam_beta2"),
    copied("max_grad_norm", "optimizer.max_grad_norm", optional(number), 1.0, zero_is_off=True),
    copied("max_steps", "training.steps", positive, 500, "batches of rollouts, as here"),
    copied("seed", "training.seed", whole, 42),
    copied("save_steps", "training.checkpoint_every", whole, 50, zero_is_off=True),
    copied("max_ckpt_to_keep", "training.keep_checkpoints", whole, 0, "0 = all there; here a number", report="",
           zero_is_off=True, unset=ALL_KEPT),
    copied("eval_steps", "evaluation.every_steps", whole, 10, "greedy, on prompts held out by data.eval_fraction",
           zero_is_off=True),
    copied("exp_name", "tracking.run_name", optional(text), None),
)  # fmt: skip

MODEL_DATA_REWARDS = (
    Rule("pretrain", optional(text), None, derived.model, "model.source", "a folder or a hub id, as here"),
    Rule(f"{TRAIN}.model_args.model_name_or_path", optional(text), None, derived.model, "model.source",
         "pretrain overrides it unless actor_train, actor_infer and reference all have one"),
    renamed(f"{TRAIN}.model_args.dtype", "model.dtype", choice("fp32", "bf16", "fp16", None), "bf16", DTYPES,
            "trained weights and optimizer state are float32 here in any case",
            remarks=dict.fromkeys(DTYPES, "trained weights are float32 here in any case"),
            otherwise="no float16 here; model.dtype bfloat16 is nearest"),
    *LORA,
    feature(f"{TRAIN}.model_args.freeze_module_prefix", anything, None, "every weight is trained here, or an adapter"),
    Rule(f"{TRAIN}.data_args.file_name", optional(texts), None, derived.data_file, "data.source",
         "one .jsonl, .parquet or .csv file here", unset=no_counterpart("names no file; set data.source")),
    copied(f"{TRAIN}.data_args.messages", "data.prompt_column", optional(text), None,
           "ROLL's column may hold the messages as JSON text; here it is a list of messages", unset=no_counterpart(OFF)),
    copied(f"{TRAIN}.data_args.prompt", "data.prompt_column", optional(text), None, unset=no_counterpart(OFF)),
    Rule("rewards.*.worker_cls", optional(text), None, derived.reward_worker, "rewards[].fn, data.answer_column",
         "MathRuleRewardWorker = math_answer on the column ground_truth; `grpo check` refuses any other until it is written or "
         "removed", unset=no_counterpart("names no reward")),
    feature("rewards.*.query_filter_config.type", text, "no_filter",
            "no resampling here; nearest: filtering.drop_zero_variance_groups"),
    feature("rewards.*.response_length_penalty_coef", number, 0.0, "write it as a reward function (`length` is one)"),
)  # fmt: skip

ALWAYS = {
    "advantage.advantage_eps": "1e-6",
    "loss.kl_estimator": "k3 in the loss, clamped to ±10",
    "reference.sync_steps": "never: the reference is fixed",
}

ROLL = System(
    name="roll",
    title="ROLL (RLVR)",
    version="ROLL at commit 8eb27cc2 of 2026-08-19, its RLVRConfig",
    rules=(*ROLLOUT, *ENGINE, *ADVANTAGE, *LOSS, *TRAINING, *MODEL_DATA_REWARDS),
    ignored=IGNORED,
    dead=DEAD,
    always=ALWAYS,
    assumptions=batches.assumed_data_parallel,
    parses_text=False,
)
