"""Keys of TRL 1.16 that have no counterpart here, by reason."""

from grpo_core.interop.rules import group

DEAD = (group("meant for scripts that read it; neither the trainer nor `trl grpo` does", "do_train do_predict"),)

IGNORED = (
    group(
        "logging is by MLflow, every step",
        """logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter report_to project
        trackio_space_id trackio_bucket_id trackio_static_space_id log_level log_level_replica disable_tqdm
        include_num_input_tokens_seen""",
    ),
    group(
        "completions are written at every training.completions_every steps",
        "log_completions log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo",
    ),
    group("the folder of a run is chosen with `grpo train --run-dir`", "output_dir"),
    group("a training continues from the checkpoints in its own folder", "resume_from_checkpoint ignore_data_skip"),
    group(
        "checkpoints are whole (policy, reference, optimizer) and local",
        """save_only_model save_on_each_node enable_jit_checkpoint restore_callback_states_from_checkpoint
        load_best_model_at_end metric_for_best_model greater_is_better""",
    ),
    group(
        "nothing is uploaded",
        "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
    ),
    group(
        "evaluation is greedy accuracy and pass@k on held-out prompts: see the section evaluation",
        """do_eval eval_delay per_device_eval_batch_size eval_on_start eval_do_concat_batches eval_use_gather_object
        eval_accumulation_steps batch_eval_metrics prediction_loss_only include_for_metrics num_generations_eval
        bf16_full_eval fp16_full_eval dataset_test_split test_split_size""",
    ),
    group(
        "memory and speed are set by training.microbatch_tokens and training.rollout_rows; the result does not depend on them",
        """gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing activation_checkpointing_kwargs
        torch_compile torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config use_cache
        torch_empty_cache_steps auto_find_batch_size tf32 pad_to_multiple_of cache_implementation skip_memory_metrics
        cast_lm_head_to_fp32 attn_implementation use_transformers_continuous_batching
        transformers_continuous_batching_config use_transformers_paged""",
    ),
    group(
        "one training process here",
        """average_tokens_across_devices accelerator_config parallelism_config ddp_find_unused_parameters ddp_bucket_cap_mb
        ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed local_rank
        ds3_gather_for_generation ignore_bias_buffers""",
    ),
    group("the device is training.device (auto, cpu, cuda)", "use_cpu"),
    group("runs repeat bitwise; training.seed and data.seed are the only seeds", "full_determinism data_seed"),
    group(
        "prompts are frozen once and read in an order that is a function of seed and step",
        """dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
        dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns
        label_names train_sampling_strategy length_column_name dataset_streaming streaming""",
    ),
    group("the optimizer is AdamW over every weight that is trained", "optim_args optim_target_modules"),
    group(
        "a parameter of an objective or bonus that does not exist here; see loss_type and entropy_coef",
        """sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
        entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target""",
    ),
    group(
        "no quantised weights here; see load_in_4bit",
        "bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage",
    ),
    group("a debugging aid of transformers", "debug"),
    group("environment variables of TRL's command line; set them in the shell", "env"),
)
