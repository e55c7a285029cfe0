"""TRL 1.16's `GRPOConfig`, and the arguments of its script `trl grpo`: which key becomes which of ours.

Defaults are TRL's; a test compares them, and the names without a counterpart, with the installed TRL. Semantics are those of
`trl/trainer/grpo_trainer.py` 1.16.0, defaults of earlier releases those of the wheels of trl 0.17 to 1.15. The way back, from a
configuration of ours to what TRL's trainer is given, is `trl_export.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from grpo_core.errors import ConfigError, shown
from grpo_core.interop import trl_values as values
from grpo_core.interop.rules import (
    Number,
    Numbers,
    Positive,
    Rule,
    Settings,
    System,
    Texts,
    Whole,
    by_key,
    copied,
    feature,
    read_elsewhere,
    renamed,
    with_defaults,
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
    vllm_or_embedded,
)

BATCH = "rollout.num_prompts_per_step, loss.minibatches"
SAMPLER = "loss.sampler_correction, loss.sampler_level, loss.sampler_bound"
SCALES = {"group": "group_std", "batch": "batch_std", "none": "none", True: "group_std", False: "none"}
LEVELS = Literal["token", "sequence"]
LOSSES = Literal["grpo", "dapo", "bnpo", "luspo", "dr_grpo", "cispo", "sapo", "vespo"]
SAMPLER_MODES = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
NO_QUANTISATION = "no quantised weights here; nearest: model.dtype bfloat16, in which model.lora holds the frozen linear layers"
NO_URL = "a server that was started for TRL cannot be used, the run starts its own: rollout.vllm.url stays null"
NO_ENTROPY = "no entropy bonus here; policy/entropy is measured"

RULES = (
    # rollouts
    copied("num_generations", "rollout.group_size", Positive, 8),
    *(Rule(key, kind, default, BATCH, values.batch) for key, kind, default in (
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
    Rule("importance_sampling_level", LEVELS, "token", "loss.ratio", values.ratio),
    renamed("use_bias_correction_kl", "loss.kl_correction", bool, True, {True: "importance", False: "none"},
            "k3 x ratio, with gradient, where true"),
    renamed("loss_type", "loss.aggregation", LOSSES, "dapo", values.LOSS_TYPES,
            "TRL divides by tokens of each micro-batch (bnpo) or of the generation batch (dapo)",
            otherwise="another objective; loss.aggregation stays at its default"),
    Rule("mask_truncated_completions", bool, False, "filtering.mask_truncated_completions", values.mask_truncated),
    feature("off_policy_mask_threshold", Number | None, None, "no off-policy sequence mask here"),
    feature("top_entropy_quantile", Number, 1.0, "the loss is over every token here"),
    feature("entropy_coef", Number, 0.0, NO_ENTROPY),
    feature("use_adaptive_entropy", bool, False, NO_ENTROPY),
    renamed("scale_rewards", "advantage.scale", bool | Literal["group", "batch", "none"], "group", SCALES),
    feature("multi_objective_aggregation", str, "sum_then_normalize", "rewards are summed before they are normalised here"),
    # reference
    Rule("sync_ref_model", bool, False, "reference.sync_steps, reference.mixup_alpha", values.reference_sync),
    Rule("ref_model_sync_steps", Positive, 512, "reference.sync_steps", values.reference_sync, needs="sync_ref_model"),
    copied("ref_model_mixup_alpha", "reference.mixup_alpha", Number, 0.6, needs="sync_ref_model"),
    # vLLM
    Rule("use_vllm", bool, False, "rollout.engine", lambda settings, key: (
        vllm_or_embedded(settings["top_p"], settings["top_k"]) if settings[key] else {"rollout.engine": "embedded"})),
    read_elsewhere("vllm_mode", Literal["server", "colocate"], "colocate",
                   "a server of the run here, unless rollout.vllm.mode colocate is set, with a training.python that has vLLM"),
    Rule("vllm_max_model_length", Positive | None, None, "rollout.max_prompt_tokens", values.context_window, needs="use_vllm",
         unset=CONTEXT),
    feature("vllm_structured_outputs_regex", str | None, None, "no pattern for completions here", needs="use_vllm"),
    *(Rule(f"vllm_importance_sampling_{key}", kind, default, SAMPLER, values.sampler_correction, needs="use_vllm")
      for key, kind, default in (("correction", bool, True), ("mode", SAMPLER_MODES, "sequence_mask"),
                                 ("clip_max", Number | None, 3.0), ("cap", Number | None, None))),
    feature("vllm_importance_sampling_clip_min", Number | None, None, "the sampler correction has no lower bound here",
            needs="use_vllm"),
    # optimizer
    copied("learning_rate", "optimizer.lr", Number, 1e-6),
    renamed("lr_scheduler_type", "optimizer.schedule", str, "linear", SCHEDULES, otherwise=NO_SCHEDULE),
    Rule("warmup_steps", Number, 0, "optimizer.warmup_steps", values.warm_up),
    Rule("warmup_ratio", Number, 0.0, "optimizer.warmup_steps", values.warm_up),
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
    Rule("max_steps", Whole, -1, "training.steps", values.length, reports_default=True),
    Rule("num_train_epochs", Number, 3.0, "", values.length),
    copied("seed", "training.seed", Whole, 42),
    feature("shuffle_dataset", bool | None, True, "every pass over the prompts is a fresh permutation here"),
    Rule("save_strategy", str, "steps", "training.checkpoint_every", values.period),
    Rule("save_steps", Number, 500, "training.checkpoint_every", values.period),
    copied("save_total_limit", "training.keep_checkpoints", Positive | None, None, unset=ALL_KEPT),
    Rule("eval_strategy", str, "no", "evaluation.every_steps", values.period),
    Rule("eval_steps", Number | None, None, "evaluation.every_steps", values.period),
    read_elsewhere("logging_steps", Number, 10, "logging is by MLflow, every step"),
    copied("run_name", "tracking.run_name", str | None, None),
    Rule("bf16", bool | None, None, "model.dtype", values.dtype),
    feature("fp16", bool, False, "no float16 here; model.dtype bfloat16 is nearest"),
    read_elsewhere("disable_dropout", bool, False, "dropout is off here in any case"),
    # the script `trl grpo`: model, rewards and data
    Rule("dtype", str | None, "float32", "model.dtype", values.dtype),
    copied("trust_remote_code", "model.trust_remote_code", bool, False),
    copied("model_name_or_path", "model.source", str | None, None, unset="names no model"),
    feature("model_revision", str, "main", "the default revision is loaded here; give a local folder for another"),
    feature("model_init_kwargs", Any, None, "models are loaded without further arguments here", off=({},)),
    Rule("reward_funcs", Texts | None, None, "rewards[].fn, filtering.overlong_buffer_tokens", values.rewards,
         unset="names no function; rewards stays at its default"),
    Rule("reward_model_name_or_path", str | None, None, "rewards[].fn", values.rewards, unset="names no model"),
    Rule("reward_weights", Numbers | None, None, "rewards[].weight", values.rewards, unset="every weight is 1"),
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
    Rule("lora_alpha", Number, 32, ALPHA, values.adapter_alpha, needs="use_peft"),
    Rule("use_rslora", bool, False, ALPHA, values.adapter_alpha, needs="use_peft"),
    Rule("lora_dropout", Number, 0.05, DROPOUT, values.trl_dropout, needs="use_peft", reports_default=True),
    Rule("lora_target_modules", Texts | None, None, TARGETS, values.target_modules, needs="use_peft"),
    feature("lora_target_parameters", Texts | None, None, "linear layers are adapted here, not single parameters", off=([],),
            needs="use_peft"),
    feature("lora_modules_to_save", Texts | None, None, WHOLE_LAYERS, off=([],), needs="use_peft"),
    feature("lora_task_type", str, "CAUSAL_LM", "a causal language model is trained here", needs="use_peft"),
    feature("use_dora", bool, False, "no DoRA here: an adapter has no trained norm of columns", needs="use_peft"),
    feature("load_in_8bit", bool, False, NO_QUANTISATION),
    feature("load_in_4bit", bool, False, NO_QUANTISATION),
)  # fmt: skip

OLDER = """num_processes overwrite_output_dir logging_dir vllm_device vllm_dtype vllm_enable_prefix_caching use_liger_loss
    gradient_checkpointing_use_reentrant jit_mode_eval half_precision_backend save_safetensors group_by_length no_cuda"""
"""Keys without a counterpart that TRL 1.16 and transformers 5 no longer have, and that files of older versions hold."""
IGNORED = by_key({
    "of an older TRL or of accelerate; the result does not depend on it": OLDER,
    "logging is by MLflow, every step": """logging_strategy logging_first_step log_on_each_node logging_nan_inf_filter report_to
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
})  # fmt: skip
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
    ignored=IGNORED,
    dead=by_key({"for scripts that read it; neither the trainer nor `trl grpo` does": "do_train do_predict"}),
    assumptions=values.assumed_processes,
    aliases=ALIASES,
)

OLDEST, EVERY_END, NEWEST = (0, 17), (1, 15), (1, 16)
CHANGES: Mapping[tuple[int, int], Mapping[str, Any]] = {
    (1, 10): {"max_completion_length": 256, "use_bias_correction_kl": False},
    (1, 0): {"vllm_mode": "server"},
    (0, 27): {"top_k": None, "dtype": None},
    (0, 26): {"max_prompt_length": 512, "vllm_importance_sampling_mode": "token_truncate",
              "vllm_importance_sampling_clip_max": 2.0},
    (0, 23): {"vllm_importance_sampling_correction": False},
    (0, 22): {"loss_type": "bnpo", "scale_rewards": True},
    (0, 19): {"beta": 0.04, "bf16": False, "optim": "adamw_torch"},
    (0, 18): {"temperature": 0.9, "top_k": 50},
}  # fmt: skip
"""{release: what was the default before it}, the newest first."""
ONE_END = "before 1.15 only the tokenizer's own end token ended a completion; here each that the model declares does"


def defaults_of(release: tuple[int, int]) -> dict[str, Any]:
    """Return {key: default} of a release where they are not those of 1.16.

    >>> defaults_of((1, 9)), defaults_of((1, 10))
    ({'max_completion_length': 256, 'use_bias_correction_kl': False}, {})
    """
    return {key: value for since, before in CHANGES.items() if release < since for key, value in before.items()}


def as_of(version: str | None) -> System:
    """Return TRL with the defaults of a release, and a note about its end tokens; None = those of 1.16, and what others had.

    Raises:
        ConfigError: the release is none that was read.
    """
    if version is None:
        return replace(TRL, assumptions=lambda settings: (*values.assumed_processes(settings), _other_defaults(settings)))
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(\.\d+)?", version)
    release = (int(match[1]), int(match[2])) if match else (0, 0)
    if not OLDEST <= release <= NEWEST:
        raise ConfigError(f"trl-version: {shown(version)} is no release that is read; give one from 0.17 to 1.16")
    note = (ONE_END,) if release < EVERY_END else ()
    return replace(
        TRL,
        title=f"TRL {release[0]}.{release[1]}",
        rules=with_defaults(RULES, defaults_of(release)),
        assumptions=lambda settings: (*values.assumed_processes(settings), *note),
    )


def _other_defaults(settings: Settings) -> str:
    """Return which keys that a file leaves out had other defaults in earlier releases."""
    former = {key: value for key, value in defaults_of(OLDEST).items() if key not in settings.given}
    shown_ones = [f"{key} {value}" for key, value in former.items() if settings["use_vllm"] or not key.startswith("vllm")]
    return (
        f"no file states the release of TRL: the defaults of 1.16 are taken, and --trl-version takes another's ({ONE_END}; "
        f"earlier releases down to 0.17 had {', '.join(shown_ones)})"
    )
