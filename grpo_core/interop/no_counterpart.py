"""Keys of TRL and ROLL without a counterpart: {why, or what to use instead: the keys}."""

from grpo_core.interop.rules import CACHE, CONTEXT, ONE_DEVICE, SERVER_SLEEPS, by_key

NO_URL = "a server that was started for TRL cannot be used, the run starts its own: rollout.vllm.url stays null"
OLDER = """num_processes overwrite_output_dir logging_dir vllm_device vllm_dtype vllm_enable_prefix_caching use_liger_loss
    gradient_checkpointing_use_reentrant jit_mode_eval half_precision_backend save_safetensors group_by_length no_cuda"""
"""Keys without a counterpart that TRL 1.16 and transformers 5 no longer have, and that files of older versions hold."""
TRL = by_key({
    "of an older TRL or of accelerate; the result does not depend on it": OLDER,
    "logging is by MLflow, every step": """logging_strategy logging_first_step log_on_each_node logging_nan_inf_filter
        project trackio_space_id trackio_bucket_id trackio_static_space_id log_level log_level_replica disable_tqdm
        include_num_input_tokens_seen""",
    "completions are written at every training.completions_every steps":
        "log_completions log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo",
    "the folder of a run is chosen with `grpo train --run-dir`": "output_dir",
    "a training continues from the checkpoints in its own folder": "resume_from_checkpoint ignore_data_skip",
    "checkpoints are whole (policy, reference, optimizer) and local": """save_only_model save_on_each_node enable_jit_checkpoint
        restore_callback_states_from_checkpoint load_best_model_at_end metric_for_best_model greater_is_better""",
    "nothing is uploaded":
        "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
    "evaluation is greedy accuracy and pass@k on held-out prompts: see the section evaluation":
        """do_eval eval_delay per_device_eval_batch_size eval_on_start eval_do_concat_batches eval_use_gather_object
        eval_accumulation_steps batch_eval_metrics prediction_loss_only include_for_metrics num_generations_eval
        bf16_full_eval fp16_full_eval dataset_test_split test_split_size""",
    "memory and speed are set by training.microbatch_tokens and training.rollout_rows; the result does not depend on them":
        """gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing activation_checkpointing_kwargs
        torch_compile torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config use_cache
        torch_empty_cache_steps auto_find_batch_size tf32 pad_to_multiple_of cache_implementation skip_memory_metrics
        cast_lm_head_to_fp32 attn_implementation use_transformers_continuous_batching
        transformers_continuous_batching_config use_transformers_paged""",
    "one training process here": """average_tokens_across_devices accelerator_config parallelism_config
        ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp
        fsdp_config deepspeed local_rank ds3_gather_for_generation ignore_bias_buffers""",
    "the device is training.device (auto, cpu, cuda)": "use_cpu",
    "runs repeat bitwise; training.seed and data.seed are the only seeds": "full_determinism data_seed",
    "prompts are frozen once and read in an order that is a function of seed and step":
        """dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
        dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns
        label_names train_sampling_strategy length_column_name dataset_streaming streaming""",
    "the optimizer is AdamW over every weight that is trained": "optim_args optim_target_modules",
    "a parameter of an objective or bonus that does not exist here; see loss_type and entropy_coef":
        """sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
        entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target""",
    "no quantised weights here; see load_in_4bit": "bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage",
    NO_URL: "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port",
    CACHE: "vllm_gpu_memory_utilization",
    ONE_DEVICE: "vllm_tensor_parallel_size",
    SERVER_SLEEPS: "vllm_enable_sleep_mode",
    "the server has vLLM's own implementation of a model where there is one": "vllm_model_impl",
    "a debugging aid of transformers": "debug",
    "environment variables of TRL's command line; set them in the shell": "env",
    "the file of the settings, which are in these lists": "config",
})  # fmt: skip

ARGS, MODEL, GENERATING, DATA = (
    "actor_train.training_args",
    "actor_train.model_args",
    "actor_infer.generating_args",
    "actor_train.data_args",
)
ENGINE, CORRECTION = "actor_infer.strategy_args", "train_infer_correction.is_weight"
OPTIONS = f"{ENGINE}.strategy_config"


def _below(prefix: str, names: str) -> str:
    """Return the names below a section, each also with what lies below it."""
    return " ".join(f"{prefix}.{name} {prefix}.{name}.*" for name in names.split())


PLACEMENT = """worker_cls world_size num_gpus_per_worker model_update_frequency infer_batch_size backend_timeout max_concurrency
    name use_dynamic_batching_in_train max_tokens_per_microbatch_in_train sequence_length_round_in_train
    use_dynamic_batching_in_infer max_tokens_per_microbatch_in_infer sequence_length_round_in_infer offload_nccl
    use_sequence_packing use_remove_padding sequence_packing_args logits_in_fp32 apply_loss_scale topr_positive_weight
    topr_negative_weight checkpoint_config system_envs"""
ROLL_DEAD = by_key({
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
ROLL = by_key({
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
        "logging_steps tracker_kwargs tracker_kwargs.* save_logging_board_dir report_length_and_rewards",
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
