"""VLM-R1's arguments (commit 90052f4, 2026-07; a fork of TRL's trainer at 0.17): a table for the documentation.

Its runs are shell scripts of `--name value` arguments: there is no file to import. What its trainer ignores is worth knowing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Argument:
    """What one argument of VLM-R1 is here."""

    names: str
    ours: str
    remark: str = ""


IGNORED_THERE = "VLM-R1's trainer never reads it"

VLM_R1 = (
    Argument(
        names="--beta", ours="loss.beta", remark="default 0.04, as here; k3 in the loss without ratio: loss.kl_correction none"
    ),
    Argument(names="--num_generations", ours="rollout.group_size"),
    Argument(
        names="--per_device_train_batch_size, --gradient_accumulation_steps",
        ours="rollout.num_prompts_per_step",
        remark="their product, times processes, divided by num_generations",
    ),
    Argument(names="--num_iterations", ours="loss.epochs_per_rollout", remark="old log-probabilities only above 1, as here"),
    Argument(names="--epsilon, --epsilon_high", ours="loss.clip_eps, loss.clip_eps_high"),
    Argument(names="(loss)", ours="loss.aggregation: seq-mean-token-mean", remark="its only one"),
    Argument(
        names="(advantages)",
        ours="advantage.scale: group_std, advantage.advantage_eps: 1e-4",
        remark="Bessel-corrected, as here; its only one",
    ),
    Argument(names="--max_completion_length", ours="rollout.max_completion_tokens"),
    Argument(names="--learning_rate, --lr_scheduler_type, --warmup_ratio", ours="optimizer.lr, .schedule, .warmup_steps"),
    Argument(
        names="--max_steps, --num_train_epochs", ours="training.steps", remark="optimizer steps there, batches of rollouts here"
    ),
    Argument(names="--seed, --save_steps, --run_name", ours="training.seed, training.checkpoint_every, tracking.run_name"),
    Argument(names="--bf16, --torch_dtype", ours="model.dtype", remark="weights are float32 here in any case"),
    Argument(names="--model_name_or_path", ours="model.source", remark="language models only: no images yet"),
    Argument(
        names="--data_file_paths", ours="data.source: file:<path>", remark="several files, separated by `:`, there; one here"
    ),
    Argument(names="--val_split_ratio", ours="data.eval_fraction"),
    Argument(
        names="--reward_funcs",
        ours="rewards[].fn",
        remark="accuracy: math_answer or exact_answer is nearest; format: format with a pattern",
    ),
    Argument(names="--reward_method", ours="—", remark="name the function that it stands for under rewards"),
    Argument(
        names="--sync_ref_model, --ref_model_sync_steps, --ref_model_mixup_alpha",
        ours="reference.sync_steps, reference.mixup_alpha",
        remark=f"{IGNORED_THERE}: a run with them had a fixed reference, which is reference.sync_steps null",
    ),
    Argument(names="--reward_weights", ours="rewards[].weight", remark=f"{IGNORED_THERE}: every weight was 1"),
    Argument(names="--temperature", ours="rollout.temperature", remark=f"{IGNORED_THERE}: it is 1 whatever is given"),
    Argument(
        names="--max_prompt_length",
        ours="rollout.max_prompt_tokens",
        remark="VLM-R1 overwrites it with none: there is no limit",
    ),
    Argument(
        names="--image_folders, --max_pixels, --min_pixels, --max_anyres_num, --freeze_vision_modules",
        ours="—",
        remark="no images yet",
    ),
    Argument(names="--use_peft, --lora_*", ours="—", remark="no LoRA here: every weight is trained"),
    Argument(names="--use_vllm, --vllm_*", ours="—", remark="completions come from the embedded sampler"),
    Argument(
        names="--deepspeed, --attn_implementation, --gradient_checkpointing", ours="—", remark="one training process here"
    ),
    Argument(names="--report_to, --logging_steps", ours="—", remark="logging is by MLflow, every step"),
)
