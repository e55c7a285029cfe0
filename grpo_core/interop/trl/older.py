"""Keys that TRL 1.16 and transformers 5 no longer have, and that files of older versions hold."""

from grpo_core.interop.records import Rule, no_counterpart
from grpo_core.interop.rules import copied, feature, group, number, optional, positive
from grpo_core.interop.trl import batches

ALIASES = {
    "torch_dtype": "dtype",
    "evaluation_strategy": "eval_strategy",
    "vllm_max_model_len": "vllm_max_model_length",
    "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
    "wandb_log_unique_prompts": "log_unique_prompts",
}
"""{older name: name now}."""

OLDER = (
    copied("max_prompt_length", "rollout.max_prompt_tokens", optional(positive), None,
           "older TRL, not a field of 1.16; it cut prompts from the left, here they are dropped",
           unset=no_counterpart("null is no bound there; prompts above rollout.max_prompt_tokens are dropped here")),
    Rule("warmup_ratio", number, 0.0, batches.warmup, "optimizer.warmup_steps",
         "older TRL, not a field of 1.16, which writes a share as warmup_steps below 1"),
    feature("num_processes", optional(positive), None,
            "of accelerate, in files of 2025; one training process here, and the number enters the prompts of a step",
            off=(), differs=False),
)  # fmt: skip

OLDER_IGNORED = (
    group("the folder of a run is never overwritten", "overwrite_output_dir"),
    group("the folder of a run is chosen with `grpo train --run-dir`", "logging_dir"),
    group("the server chooses its own device and cache", "vllm_device vllm_dtype vllm_enable_prefix_caching"),
    group(
        "memory and speed are set by training.microbatch_tokens and training.rollout_rows; the result does not depend on them",
        "use_liger_loss gradient_checkpointing_use_reentrant jit_mode_eval half_precision_backend",
    ),
    group("weights are saved as safetensors here in any case", "save_safetensors"),
    group("prompts are read in an order that is a function of seed and step", "group_by_length"),
    group("the device is training.device (auto, cpu, cuda)", "no_cuda"),
)
