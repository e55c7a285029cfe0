"""Keys of ROLL's RLVR configuration that have no counterpart here, and those that ROLL itself does not read."""

from grpo_core.interop.engine import CACHE, ONE_DEVICE, SERVER_SLEEPS
from grpo_core.interop.rules import group

SERVER = {
    CACHE: "gpu_memory_utilization mem_fraction_static",
    SERVER_SLEEPS: "sleep_level",
    ONE_DEVICE: """tensor_parallel_size pipeline_parallel_size data_parallel_size enable_expert_parallel
        distributed_executor_backend disable_custom_all_reduce""",
    "of vLLM's cache; the completions do not depend on it": "block_size",
    "the server starts with the initial weights, and is given the policy's before every step": "load_format",
    "vLLM's default, which is on; emptied whenever the weights change": "enable_prefix_caching",
    "the server is always eager": "enforce_eager",
    "prompts are not cut into chunks here; it is the larger of 8192 and the server's context": "max_num_batched_tokens",
    "nearest: rollout.vllm.in_flight, completions at a time": "max_num_seqs",
    "always processed_logprobs: with the temperature, as the trainer's": "logprobs_mode",
    "a choice of older vLLM": "VLLM_USE_V1",
}
"""Options of the engine without a counterpart: {why: names}."""


def _in_config(names: str) -> str:
    return " ".join(f"actor_infer.strategy_args.strategy_config.{name}" for name in names.split())


DEAD = (
    group(
        "removed from ROLL's code in August 2025, still shipped in its YAMLs; norm_mean_type and norm_std_type replaced them",
        "reward_norm reward_shift reward_scale",
    ),
    group("in ROLL's documentation only, no field of its configuration", "reward_normalize token_level_loss div_std_global"),
    group("no field of ROLL's data arguments", "actor_train.data_args.dataset_dir actor_train.data_args.interleave_probs"),
    group(
        "of an older ROLL; train_infer_correction replaced it",
        """use_rollout_importance_sampling_ratio rollout_importance_sampling_ratio_upper_bound train_infer_ratio_mask
        train_infer_ratio_threshold_low train_infer_ratio_threshold_high train_infer_diff_mask
        train_infer_diff_threshold_low train_infer_diff_threshold_high train_infer_ratio_seq_mask
        train_infer_ratio_seq_threshold_low train_infer_ratio_seq_threshold_high train_infer_diff_seq_mask
        train_infer_diff_seq_threshold_low train_infer_diff_seq_threshold_high""",
    ),
    group("overwritten with prompt_length and response_length", "actor_infer.generating_args.max_new_tokens"),
    group("overwritten with num_return_sequences_in_group", "actor_infer.generating_args.num_return_sequences"),
    group("max_new_tokens replaces it", "actor_infer.generating_args.max_length"),
    group("overwritten with the pipeline's seed", "actor_train.training_args.seed"),
    group("overwritten with a count derived from the pipeline's max_steps", "actor_train.training_args.max_steps"),
    group("overwritten with the pipeline's output_dir", "actor_train.training_args.output_dir"),
    group("the pipeline's max_grad_norm is the one that is read", "actor_train.training_args.max_grad_norm"),
    group("overwritten with the number of devices that ROLL finds", "num_gpus_per_node"),
    group(
        "overwritten with actor_infer.model_args and the pipeline's seed",
        _in_config("model dtype seed trust_remote_code"),
    ),
    group("ROLL switches it on in any case", _in_config("enable_sleep_mode")),
)

PLACEMENT = """worker_cls world_size num_gpus_per_worker model_update_frequency infer_batch_size backend_timeout max_concurrency
    name use_dynamic_batching_in_train max_tokens_per_microbatch_in_train sequence_length_round_in_train
    use_dynamic_batching_in_infer max_tokens_per_microbatch_in_infer sequence_length_round_in_infer offload_nccl
    use_sequence_packing use_remove_padding sequence_packing_args
    logits_in_fp32 apply_loss_scale topr_positive_weight topr_negative_weight
    checkpoint_config system_envs"""


def _of_worker(worker: str, names: str) -> str:
    """Return the names below a worker's section, each also with what lies below it."""
    return " ".join(f"{worker}.{name} {worker}.{name}.*" for name in names.split())


IGNORED = (
    group(
        "of the validation set; here prompts are held out by data.eval_fraction, see the section evaluation",
        "validation validation.* val_batch_size val_prompt_length val_sequence_length val_greedy val_n_sample",
    ),
    group("no critic here", "critic critic.*"),
    group("no reward model here", "reward reward.* reward_model reward_model.* reward_pretrain"),
    group("the reference is a copy of the policy here, in the same dtype", "reference reference.*"),
    group(
        "one training process, memory by training.microbatch_tokens",
        _of_worker("actor_train", PLACEMENT + " strategy_args"),
    ),
    group(
        "one training process, attention and gradient checkpointing as transformers has them",
        """actor_train.model_args.attn_implementation actor_train.model_args.flash_attn
        actor_train.model_args.disable_gradient_checkpointing
        actor_train.model_args.gradient_checkpointing_use_reentrant actor_train.model_args.device_map
        actor_train.model_args.vision_dp""",
    ),
    group(
        "no further arguments of the model here",
        """actor_train.model_args.model_type actor_train.model_args.num_labels actor_train.model_args.model_config_kwargs
        actor_train.model_args.model_config_kwargs.* actor_train.model_args.moe_aux_loss_coef""",
    ),
    group("an adapter's weights are float32 here in any case", "actor_train.model_args.autocast_adapter_dtype"),
    group(
        "model.dtype is the compute type",
        "actor_train.training_args.bf16 actor_train.training_args.fp16 actor_train.training_args.tf32",
    ),
    group("the length of a run is training.steps", "actor_train.training_args.num_train_epochs"),
    group(
        "prompts are read in an order that is a function of training.seed and step",
        "actor_train.training_args.data_seed actor_train.training_args.dataloader_num_workers",
    ),
    group(
        "prompts are rendered with the tokenizer's own chat template (data.chat_template, data.system_prompt)",
        "actor_train.data_args.template actor_infer.data_args actor_infer.data_args.* global_template",
    ),
    group(
        "one data source, all of whose prompts are drawn alike",
        """actor_train.data_args.domain_interleave_probs actor_train.data_args.domain_interleave_probs.*
        actor_train.data_args.tag actor_train.data_args.id dataset_filter dataset_filter.*
        actor_train.data_args.dataset_type""",
    ),
    group("the gold answer is data.answer_column", "actor_train.data_args.response"),
    group(
        "prepared prompts are cached by their inputs",
        """actor_train.data_args.cache_path actor_train.data_args.preprocessing_num_workers
        actor_train.data_args.eval_file_name""",
    ),
    group(
        "of ROLL's inference workers: here the trainer samples, or one vLLM server beside it on the same devices",
        _of_worker("actor_infer", PLACEMENT + " model_args training_args device_mapping"),
    ),
    group("an option of ROLL's engine; docs/vllm.md has those of the server here", _of_worker("actor_infer", "strategy_args")),
    *(group(reason, _in_config(names)) for reason, names in SERVER.items()),
    group(
        "no such option of sampling here",
        """actor_infer actor_infer.generating_args actor_infer.generating_args.seed
        actor_infer.generating_args.length_penalty actor_infer.generating_args.include_stop_str_in_output
        actor_infer.generating_args.logprobs actor_infer.generating_args.extra_args
        actor_infer.generating_args.extra_args.*""",
    ),
    group(
        "of a reward worker; see its worker_cls",
        """rewards rewards.* rewards.*.model_args.* rewards.*.data_args.* rewards.*.strategy_args.*
        rewards.*.generating_args.*""",
    ),
    group("of the agentic pipeline's or VLM pipeline's prompts", "vlm_filter vlm_filter.*"),
    group(
        "the old log-probabilities come from the rollout's own pass, and are recomputed where several updates need them",
        "enable_old_logprobs_recompute force_disable_old_logprobs_recompute",
    ),
    group("every KL is measured in any case", "enable_reference"),
    group(
        "sampling is one batch a step, training.rollout_rows at once",
        """generate_opt_level is_num_return_sequences_expand is_use_additional_prompts use_additional_prompts
        max_additional_running_prompts user_defined_rollout_loop_cls router_args router_args.*
        balance_length minibatch_data_iter_num""",
    ),
    group("of each inference worker; nearest: rollout.vllm.in_flight, completions at a time", "max_running_requests"),
    group(
        "of difficulty_mask and error_max_len_clip, which do not exist here",
        "difficulty_low_threshold difficulty_high_threshold error_max_len_threshold",
    ),
    group("filtered completions leave the loss and its denominators; statistics keep them", "mask_type"),
    group("the weights have no gradient here, as with detach", "train_infer_correction.is_weight.detach"),
    group("decoupled weight decay is optimizer.weight_decay", "l2"),
    group(
        "logging is by MLflow, every step",
        "logging_steps track_with tracker_kwargs tracker_kwargs.* save_logging_board_dir report_length_and_rewards",
    ),
    group(
        "the folder of a run is chosen with `grpo train --run-dir`",
        "output_dir base_dir logging_dir rollout_dump_dir checkpoint_config checkpoint_config.* length_profiler_dir",
    ),
    group("a training continues from the checkpoints in its own folder", "resume_from_checkpoint"),
    group("no profiler here", "profiler_timeline profiler_memory profiler_output_dir"),
    group("environment variables; set them in the shell", "system_envs system_envs.*"),
    group(
        "one machine and one training process here",
        """num_nodes rpc_timeout local_rank model_update_buffer_size_mb is_offload_states
        is_offload_optimizer_states_in_train_step""",
    ),
    group("the hub is that of huggingface; give a local folder for another", "model_download_type"),
    group("a debugging aid of ROLL", "rollout_mock rollout_mock.*"),
    group("Hydra's own; compose the file first if it inherits from others", "defaults hydra hydra.*"),
    group(
        "a section without content",
        """actor_train actor_train.training_args actor_train.model_args actor_train.data_args train_infer_correction
        train_infer_correction.is_weight""",
    ),
)
