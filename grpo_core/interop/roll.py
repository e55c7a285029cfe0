"""ROLL's RLVR pipeline (`RLVRConfig`, read at commit 8eb27cc2, 2026-08): which key becomes which of ours.

Keys are paths, as in `actor_train.training_args.learning_rate`. Semantics are those of `roll/pipeline/rlvr/` and
`roll/utils/functionals.py`; ROLL's documentation differs from its code in places, and the code counts. Values that depend on
several keys are in `roll_values.py`.
"""

from typing import Any, Literal

from grpo_core.interop import roll_values as values
from grpo_core.interop.roll_values import ARGS, CORRECTION, ENGINE, GENERATING, MEGATRON_SIZES, MODEL, STRATEGY, ULYSSES
from grpo_core.interop.rules import (
    Number,
    Positive,
    Rule,
    System,
    Texts,
    Whole,
    by_key,
    copied,
    feature,
    read_elsewhere,
    renamed,
)
from grpo_core.interop.shared import (
    ALL_KEPT,
    ALPHA,
    CACHE,
    CONTEXT,
    DROPOUT,
    NO_SCHEDULE,
    ONE_DEVICE,
    RANK,
    SCHEDULES,
    SERVER_SLEEPS,
    TARGETS,
    WHOLE_LAYERS,
    adam_betas,
    adapter_dropout,
    one_file,
)

DATA, OPTIONS = "actor_train.data_args", f"{ENGINE}.strategy_config"
NORM = Literal["batch", "group", "running"] | None
DTYPE = Literal["fp32", "bf16", "fp16"] | None
ESTIMATOR = Literal["gae", "reinforce", "grpo", "gigpo", "step_reinforce", "agentic_reinforce"]
AGGREGATION = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
DTYPES = {"fp32": "float32", "bf16": "bfloat16", None: "bfloat16"}
BETA = "loss.beta, loss.kl_correction"
SAMPLER = "loss.sampler_correction, loss.sampler_level, loss.sampler_bound"
ONE_PROCESS = "one training process here; it enters through the data-parallel size behind loss.minibatches"
QUANTISED = "the server has the weights in the type in which they are trained"
NO_TOPR = "no TOPR here"

RULES = (
    # rollouts
    copied("rollout_batch_size", "rollout.num_prompts_per_step", Positive, 128, "prompts, not completions"),
    copied("num_return_sequences_in_group", "rollout.group_size", Positive, 1),
    copied("prompt_length", "rollout.max_prompt_tokens", Positive, 1024, "longer prompts are dropped"),
    Rule("response_length", Positive | None, None, "rollout.max_completion_tokens", values.lengths),
    Rule("sequence_length", Positive | None, None, "rollout.max_completion_tokens", values.lengths),
    copied(f"{GENERATING}.temperature", "rollout.temperature", Number, 0.95, "log-probabilities here are of the scaled policy"),
    copied(f"{GENERATING}.top_p", "rollout.top_p", Number, 0.7),
    copied(f"{GENERATING}.top_k", "rollout.top_k", Whole | None, 50, zero_is_off=True),
    feature(f"{GENERATING}.do_sample", bool | None, True, "completions are sampled here"),
    feature(f"{GENERATING}.num_beams", Whole | None, 1, "no beam search here"),
    feature(f"{GENERATING}.repetition_penalty", Number | None, 1.0, "no repetition penalty here"),
    feature(f"{GENERATING}.stop_strings", Any, None, "completions end with the end-of-sequence token here", off=([],)),
    feature("async_generation_ratio", Number, 0, "rollouts are of the current policy here"),
    # the engine that samples
    Rule(f"{ENGINE}.strategy_name", str | None, None, "rollout.engine", values.engine, unset="names no engine"),
    *(feature(f"{OPTIONS}.{key}", Any, None, QUANTISED) for key in ("quantization", "online_quantization")),
    feature(f"{OPTIONS}.kv_cache_dtype", str | None, "auto", "the server's cache has the type of the model", off=(None,)),
    Rule(f"{CORRECTION}.enabled", bool, False, SAMPLER, values.sampler_correction),
    Rule(f"{CORRECTION}.weight_type", str, "token", SAMPLER, values.sampler_correction, needs=f"{CORRECTION}.enabled"),
    Rule(f"{CORRECTION}.upper_bound", Number | None, 1.2, SAMPLER, values.sampler_correction, needs=f"{CORRECTION}.enabled"),
    feature("train_infer_correction.filters", Any, [], "nearest: loss.sampler_correction mask", off=(None,)),
    # advantages
    Rule("adv_estimator", ESTIMATOR, "gae", "advantage.baseline, advantage.scale, advantage.advantage_eps",
         values.normalisation, reports_default=True),
    Rule("norm_mean_type", NORM, None, "advantage.baseline", values.normalisation),
    Rule("norm_std_type", NORM, None, "advantage.scale", values.normalisation),
    Rule("reward_clip", Number | None, None, "advantage.reward_clip, advantage.advantage_clip", values.reward_clip,
         unset="off in the file, nothing to replace"),
    copied("whiten_advantages", "advantage.whiten_advantages", bool, False, "over the loss tokens of the step"),
    copied("advantage_clip", "advantage.advantage_clip", Number | None, None, "after whitening, as here"),
    feature("whiten_rewards", bool, False, "rewards are compared within groups here"),
    feature("use_reward_scaling", bool, False, "no running scale of rewards here"),
    feature("use_reward_norm", bool, False, "no running mean of rewards here"),
    feature("add_len_reward", bool, False, "write it as a reward function (`length` is one)"),
    feature("gamma", Number, 1, "no discount here"),
    # loss
    copied("ppo_epochs", "loss.epochs_per_rollout", Positive, 1),
    Rule("pg_clip", Number, 0.2, "loss.clip_eps, loss.dual_clip", values.clip),
    Rule("use_pg_clip_range", bool, False, "loss.clip_eps, loss.clip_eps_high", values.clip),
    copied("pg_clip_low", "loss.clip_eps", Number, 0.2, needs="use_pg_clip_range"),
    copied("pg_clip_high", "loss.clip_eps_high", Number, 0.2, needs="use_pg_clip_range"),
    Rule("dual_clip_loss", bool, False, "loss.dual_clip", values.clip),
    renamed("importance_sampling", "loss.ratio", Literal["token", "seq"], "token", {"token": "token", "seq": "sequence"}),
    Rule("loss_agg_mode", AGGREGATION, "seq-mean-token-mean", "loss.aggregation", values.loss_agg_mode),
    Rule("use_kl_loss", bool, False, BETA, values.kl),
    Rule("kl_loss_coef", Number, 0, BETA, values.kl, needs="use_kl_loss"),
    Rule("add_token_level_kl", bool, False, "loss.kl_placement, loss.kl_estimator, loss.beta", values.kl),
    Rule("init_kl_coef", Number, 0.2, "loss.beta", values.kl, needs="add_token_level_kl"),
    Rule("kl_penalty", str, "kl", "loss.kl_estimator", values.kl, needs="add_token_level_kl"),
    feature("target_kl", Number | None, None, "no adaptive KL coefficient here; see kl_budget of monitor.rules",
            needs="add_token_level_kl"),
    copied("max_len_mask", "filtering.mask_truncated_completions", bool, False, "group statistics keep the rewards, as there"),
    feature("difficulty_mask", bool, False, "nearest: filtering.drop_zero_variance_groups"),
    feature("error_max_len_clip", bool, False, "nearest: filtering.mask_truncated_completions"),
    feature("entropy_loss_coef", Number, 0, "no entropy bonus here; policy/entropy is measured"),
    feature("rl_loss_coef", Number, 1.0, "the policy loss has no coefficient here; scale optimizer.lr"),
    feature("postive_loss_coef", Number, 0, "no supervised term here"),
    feature("use_topr_neg_loss_coef", Number, 0.0, NO_TOPR),
    feature("use_topr_loss", bool, False, NO_TOPR),
    feature("use_policy_loss_type", str, "PPO", "the loss is the clipped surrogate; loss.clip_eps null switches clipping off"),
    feature("actor_train.pg_variant", Any, None, "the loss is the clipped surrogate here", off=("ppo",)),
    feature("difficulty_loss_weight", bool, False, "completions are not weighted by difficulty here"),
    feature("length_loss_weight", bool, False, "completions are not weighted by length; see loss.aggregation"),
    # training
    Rule(f"{ARGS}.per_device_train_batch_size", Positive, 8, "loss.minibatches", values.minibatches),
    Rule(f"{ARGS}.gradient_accumulation_steps", Positive, 1, "loss.minibatches", values.minibatches),
    Rule("actor_train.device_mapping", Any, None, "loss.minibatches", values.minibatches),
    read_elsewhere(STRATEGY, str | None, None, ONE_PROCESS),
    *(read_elsewhere(key, Positive | None, 1, ONE_PROCESS) for key in (*MEGATRON_SIZES, ULYSSES)),
    copied(f"{ARGS}.learning_rate", "optimizer.lr", Number, 5e-5),
    renamed(f"{ARGS}.lr_scheduler_type", "optimizer.schedule", str, "linear", SCHEDULES, otherwise=NO_SCHEDULE),
    Rule(f"{ARGS}.warmup_steps", Number, 0, "optimizer.warmup_steps", values.warm_up),
    Rule(f"{ARGS}.warmup_ratio", Number, 0.0, "optimizer.warmup_steps", values.warm_up),
    copied(f"{ARGS}.weight_decay", "optimizer.weight_decay", Number, 0.0),
    *adam_betas(f"{ARGS}.adam_beta1", f"{ARGS}.adam_beta2"),
    copied("max_grad_norm", "optimizer.max_grad_norm", Number | None, 1.0, zero_is_off=True),
    copied("max_steps", "training.steps", Positive, 500, "batches of rollouts, as here"),
    copied("seed", "training.seed", Whole, 42),
    copied("save_steps", "training.checkpoint_every", Whole, 50, zero_is_off=True),
    copied("max_ckpt_to_keep", "training.keep_checkpoints", Whole, 0, unset=ALL_KEPT),
    copied("eval_steps", "evaluation.every_steps", Whole, 10, "greedy, on prompts held out by data.eval_fraction",
           zero_is_off=True),
    copied("exp_name", "tracking.run_name", str | None, None),
    # model, adapter, data and rewards
    Rule("pretrain", str | None, None, "model.source", values.model),
    Rule(f"{MODEL}.model_name_or_path", str | None, None, "model.source", values.model),
    renamed(f"{MODEL}.dtype", "model.dtype", DTYPE, "bf16", DTYPES, "trained weights are float32 here in any case",
            otherwise="no float16 here; model.dtype bfloat16 is nearest"),
    Rule(f"{MODEL}.lora_target", str | None, None, TARGETS, values.lora_target),
    copied(f"{MODEL}.lora_rank", RANK, Positive, 8, needs=f"{MODEL}.lora_target"),
    copied(f"{MODEL}.lora_alpha", ALPHA, Number | None, None, "null = 2 x rank, as there", zero_is_off=True,
           needs=f"{MODEL}.lora_target"),
    Rule(f"{MODEL}.lora_dropout", Number | None, 0.0, DROPOUT, adapter_dropout, needs=f"{MODEL}.lora_target"),
    feature(f"{MODEL}.additional_target", str | None, None, WHOLE_LAYERS, needs=f"{MODEL}.lora_target"),
    feature(f"{MODEL}.adapter_name_or_path", str | None, None, "set model.lora.init_from to the adapter's folder"),
    feature(f"{MODEL}.freeze_module_prefix", Any, None, "every weight is trained here, or an adapter"),
    Rule(f"{DATA}.file_name", Texts | None, None, "data.source",
         lambda settings, key: one_file(settings[key], "relative to where the command runs"), unset="names no file"),
    copied(f"{DATA}.messages", "data.prompt_column", str | None, None, "a list of messages here, JSON text in some data there",
           unset="names no column"),
    copied(f"{DATA}.prompt", "data.prompt_column", str | None, None, unset="names no column"),
    Rule("rewards.*.worker_cls", str | None, None, "rewards[].fn, data.answer_column", values.reward_workers,
         unset="names no reward"),
    feature("rewards.*.query_filter_config.type", str, "no_filter",
            "no resampling here; nearest: filtering.drop_zero_variance_groups"),
    feature("rewards.*.response_length_penalty_coef", Number, 0.0, "write it as a reward function (`length` is one)"),
)  # fmt: skip


def _below(prefix: str, names: str) -> str:
    """Return the names below a section, each also with what lies below it."""
    return " ".join(f"{prefix}.{name} {prefix}.{name}.*" for name in names.split())


PLACEMENT = """worker_cls world_size num_gpus_per_worker model_update_frequency infer_batch_size backend_timeout max_concurrency
    name use_dynamic_batching_in_train max_tokens_per_microbatch_in_train sequence_length_round_in_train
    use_dynamic_batching_in_infer max_tokens_per_microbatch_in_infer sequence_length_round_in_infer offload_nccl
    use_sequence_packing use_remove_padding sequence_packing_args logits_in_fp32 apply_loss_scale topr_positive_weight
    topr_negative_weight checkpoint_config system_envs"""
DEAD = by_key({
    "removed from ROLL's code in August 2025, still shipped in its YAMLs; norm_mean_type and norm_std_type replaced them":
        "reward_norm reward_shift reward_scale",
    "in ROLL's documentation only, no field of its configuration": "reward_normalize token_level_loss div_std_global",
    "no field of ROLL's data arguments": f"{DATA}.dataset_dir {DATA}.interleave_probs",
    "of an older ROLL; train_infer_correction replaced it": """use_rollout_importance_sampling_ratio
        rollout_importance_sampling_ratio_upper_bound train_infer_ratio_* train_infer_diff_*""",
    "overwritten with prompt_length and response_length": f"{GENERATING}.max_new_tokens {GENERATING}.max_length",
    "overwritten with num_return_sequences_in_group": f"{GENERATING}.num_return_sequences",
    "the pipeline's key of this name is the one that is read": " ".join(
        f"{ARGS}.{key}" for key in ("seed", "max_steps", "output_dir", "max_grad_norm")),
    "overwritten with the number of devices that ROLL finds": "num_gpus_per_node",
    "overwritten with actor_infer.model_args and the pipeline's seed": " ".join(
        f"{OPTIONS}.{key}" for key in ("model", "dtype", "seed", "trust_remote_code")),
    "ROLL switches it on in any case": f"{OPTIONS}.enable_sleep_mode",
})  # fmt: skip
IGNORED = by_key({
    "of the validation set; here prompts are held out by data.eval_fraction, see the section evaluation":
        "validation validation.* val_batch_size val_prompt_length val_sequence_length val_greedy val_n_sample",
    "of the critic, which adv_estimator gae alone has; no critic here": "critic critic.* lambd value_clip critic_warmup",
    "see target_kl": "kl_horizon",
    "the sampler computes in model.dtype, as the trainer": "actor_infer.model_args.dtype",
    CONTEXT: f"{OPTIONS}.max_model_len",
    "no reward model here": "reward reward.* reward_model reward_model.* reward_pretrain",
    "the reference is a copy of the policy here, in the same dtype": "reference reference.*",
    "one training process, memory by training.microbatch_tokens": _below("actor_train", f"{PLACEMENT} strategy_args"),
    "one training process, attention and gradient checkpointing as transformers has them": _below(
        MODEL, """attn_implementation flash_attn disable_gradient_checkpointing gradient_checkpointing_use_reentrant device_map
        vision_dp"""),
    "no further arguments of the model here": _below(MODEL, "model_type num_labels model_config_kwargs moe_aux_loss_coef"),
    "an adapter's weights are float32 here in any case": f"{MODEL}.autocast_adapter_dtype",
    "model.dtype is the compute type": f"{ARGS}.bf16 {ARGS}.fp16 {ARGS}.tf32",
    "the length of a run is training.steps": f"{ARGS}.num_train_epochs",
    "prompts are read in an order that is a function of training.seed and step":
        f"{ARGS}.data_seed {ARGS}.dataloader_num_workers",
    "prompts are rendered with the tokenizer's own chat template (data.chat_template, data.system_prompt)":
        f"{DATA}.template actor_infer.data_args actor_infer.data_args.* global_template",
    "one data source, all of whose prompts are drawn alike":
        _below(DATA, "domain_interleave_probs tag id dataset_type") + " dataset_filter dataset_filter.*",
    "the gold answer is data.answer_column": f"{DATA}.response",
    "prepared prompts are cached by their inputs": _below(DATA, "cache_path preprocessing_num_workers eval_file_name"),
    "of ROLL's inference workers: here the trainer samples, or one vLLM server beside it on the same devices":
        _below("actor_infer", f"{PLACEMENT} model_args training_args device_mapping"),
    "an option of ROLL's engine; docs/vllm.md has those of the server here": _below("actor_infer", "strategy_args"),
    CACHE: f"{OPTIONS}.gpu_memory_utilization {OPTIONS}.mem_fraction_static",
    SERVER_SLEEPS: f"{OPTIONS}.sleep_level",
    ONE_DEVICE: _below(OPTIONS, "tensor_parallel_size pipeline_parallel_size data_parallel_size enable_expert_parallel"),
    "no such option of sampling here": f"actor_infer {GENERATING} {GENERATING}.*",
    "of a reward worker; see its worker_cls": "rewards rewards.*",
    "of the agentic pipeline's or VLM pipeline's prompts": "vlm_filter vlm_filter.*",
    "the old log-probabilities come from the rollout's own pass, and are recomputed where several updates need them":
        "enable_old_logprobs_recompute force_disable_old_logprobs_recompute",
    "every KL is measured in any case": "enable_reference",
    "sampling is one batch a step, training.rollout_rows at once":
        """generate_opt_level is_num_return_sequences_expand is_use_additional_prompts use_additional_prompts
        max_additional_running_prompts user_defined_rollout_loop_cls router_args router_args.* balance_length
        minibatch_data_iter_num""",
    "of each inference worker; nearest: rollout.vllm.in_flight, completions at a time": "max_running_requests",
    "of difficulty_mask and error_max_len_clip, which do not exist here":
        "difficulty_low_threshold difficulty_high_threshold error_max_len_threshold",
    "filtered completions leave the loss and its denominators; statistics keep them": "mask_type",
    "the weights have no gradient here, as with detach": f"{CORRECTION}.detach",
    "decoupled weight decay is optimizer.weight_decay": "l2",
    "logging is by MLflow, every step":
        "logging_steps track_with tracker_kwargs tracker_kwargs.* save_logging_board_dir report_length_and_rewards",
    "the folder of a run is chosen with `grpo train --run-dir`":
        "output_dir base_dir logging_dir rollout_dump_dir checkpoint_config checkpoint_config.* length_profiler_dir",
    "a training continues from the checkpoints in its own folder": "resume_from_checkpoint",
    "no profiler here": "profiler_timeline profiler_memory profiler_output_dir",
    "environment variables; set them in the shell": "system_envs system_envs.*",
    "one machine and one training process here": """num_nodes rpc_timeout local_rank model_update_buffer_size_mb
        is_offload_states is_offload_optimizer_states_in_train_step""",
    "the hub is that of huggingface; give a local folder for another": "model_download_type",
    "a debugging aid of ROLL": "rollout_mock rollout_mock.*",
    "Hydra's own; compose the file first if it inherits from others": "defaults hydra hydra.*",
    "a section without content": f"actor_train {ARGS} {MODEL} {DATA} train_infer_correction {CORRECTION}",
})  # fmt: skip

ROLL = System(
    name="roll",
    title="ROLL (RLVR)",
    version="ROLL at commit 8eb27cc2 of 2026-08-19, its RLVRConfig",
    rules=RULES,
    ignored=IGNORED,
    dead=DEAD,
    assumptions=values.assumed_data_parallel,
    is_nested=True,
)
