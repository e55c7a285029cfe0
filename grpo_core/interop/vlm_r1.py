"""VLM-R1's arguments (commit 90052f4, 2026-07; a fork of TRL's trainer at 0.17): a table for the documentation.

Its runs are shell scripts of `--name value` arguments: there is no file to import. What its trainer ignores is worth knowing.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """What some arguments of VLM-R1 are here."""

    names: str
    """Separated by commas, as our keys are."""
    ours: str = ""
    remark: str = ""


IGNORED_THERE = "VLM-R1's trainer never reads it"

VLM_R1 = (
    Argument("--beta", "loss.beta", "default 0.04, as here"),
    Argument("--num_generations", "rollout.group_size"),
    Argument("--per_device_train_batch_size, --gradient_accumulation_steps", "rollout.num_prompts_per_step",
             "their product, times processes, divided by num_generations"),
    Argument("--num_iterations", "loss.epochs_per_rollout", "old log-probabilities only above 1, as here"),
    Argument("--epsilon", "loss.clip_eps"),
    Argument("--epsilon_high", "loss.clip_eps_high"),
    Argument("--max_completion_length", "rollout.max_completion_tokens"),
    Argument("--learning_rate", "optimizer.lr"),
    Argument("--lr_scheduler_type", "optimizer.schedule"),
    Argument("--warmup_steps, --warmup_ratio", "optimizer.warmup_steps"),
    Argument("--weight_decay", "optimizer.weight_decay"),
    Argument("--adam_beta1, --adam_beta2", "optimizer.adam_betas"),
    Argument("--max_grad_norm", "optimizer.max_grad_norm"),
    Argument("--max_steps, --num_train_epochs", "training.steps", "optimizer steps there, batches of rollouts here"),
    Argument("--seed", "training.seed"),
    Argument("--save_steps", "training.checkpoint_every"),
    Argument("--run_name", "tracking.run_name"),
    Argument("--bf16, --torch_dtype", "model.dtype", "weights are float32 here in any case"),
    Argument("--model_name_or_path", "model.source", "language models only: no images yet"),
    Argument("--data_file_paths", "data.source", "file:<path>; several files, separated by `:`, there; one here"),
    Argument("--val_split_ratio", "data.eval_fraction"),
    Argument("--reward_funcs", "rewards[].fn",
             "accuracy: math_answer or exact_answer is nearest; format: format with a pattern"),
    Argument("--reward_method", "", "name the function that it stands for under rewards"),
    Argument("--sync_ref_model, --ref_model_sync_steps", "reference.sync_steps",
             f"{IGNORED_THERE}: a run with them had a fixed reference, which is reference.sync_steps null"),
    Argument("--ref_model_mixup_alpha", "reference.mixup_alpha", IGNORED_THERE),
    Argument("--reward_weights", "rewards[].weight", f"{IGNORED_THERE}: every weight was 1"),
    Argument("--temperature", "rollout.temperature", f"{IGNORED_THERE}: it is 1 whatever is given"),
    Argument("--max_prompt_length", "rollout.max_prompt_tokens", "VLM-R1 overwrites it with none: there is no limit"),
    Argument("--image_folders, --max_pixels, --min_pixels, --max_anyres_num, --freeze_vision_modules", "", "no images yet"),
    Argument("--use_peft, --lora_*", "", "no LoRA here: every weight is trained"),
    Argument("--use_vllm, --vllm_*", "", "completions come from the embedded sampler"),
    Argument("--deepspeed, --attn_implementation, --gradient_checkpointing", "", "one training process here"),
    Argument("--report_to, --logging_steps", "", "logging is by MLflow, every step"),
)  # fmt: skip

READ_THEN_IGNORED = "read, then ignored"
ALWAYS = {
    "rollout.max_prompt_tokens": READ_THEN_IGNORED,
    "rollout.temperature": f"{READ_THEN_IGNORED}: always 1",
    "advantage.baseline": "the group's mean",
    "advantage.scale": "the group's standard deviation, Bessel-corrected, as here",
    "advantage.advantage_eps": "1e-4",
    "loss.kl_estimator": "k3",
    "loss.kl_placement": "in the loss",
    "loss.kl_correction": "none",
    "loss.ratio": "token",
    "loss.aggregation": "seq-mean-token-mean",
    "reference.sync_steps": READ_THEN_IGNORED,
    "reference.mixup_alpha": READ_THEN_IGNORED,
}
"""What its trainer does whatever its arguments are: {our key: what}."""
