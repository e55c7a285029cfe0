"""The way back: from a configuration of this project to the arguments of TRL's trainer that state what it does.

What of ours TRL has no key for is in `config/limits.py`.
"""

from pathlib import Path
from typing import Any

from grpo_core.config.derived import optimizer_steps
from grpo_core.config.schema import RunConfig
from grpo_core.interop.trl import LOSS_TYPES


def export_config(config: RunConfig) -> dict[str, Any]:
    """Return the fields of `GRPOConfig` that state what `config` does; importing them gives these keys of `config` again."""
    rollout, loss, optimizer, training = config.rollout, config.loss, config.optimizer, config.training
    sync_steps, updates = config.reference.sync_steps, updates_per_step(config)
    is_warmed_up = optimizer.schedule == "constant" and optimizer.warmup_steps
    loss_types = {ours: theirs for theirs, ours in LOSS_TYPES.items() if theirs != "bnpo"}
    return {
        "num_generations": rollout.group_size,
        **in_passes(config, rows_per_minibatch(config)),
        "max_completion_length": rollout.max_completion_tokens,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k or 0,
        "beta": loss.beta,
        "num_iterations": loss.epochs_per_rollout,
        "epsilon": loss.clip_eps,
        "epsilon_high": loss.clip_eps_high,
        "delta": loss.dual_clip,
        "importance_sampling_level": loss.ratio,
        "use_bias_correction_kl": loss.kl_correction == "importance",
        "loss_type": loss_types[loss.aggregation],
        "mask_truncated_completions": config.filtering.mask_truncated_completions,
        "scale_rewards": {"group_std": "group", "batch_std": "batch", "none": "none"}[config.advantage.scale],
        "reward_weights": [reward.weight for reward in config.rewards],  # the functions are given as objects
        "sync_ref_model": sync_steps is not None,
        "ref_model_sync_steps": (sync_steps or 1) * updates,
        "ref_model_mixup_alpha": config.reference.mixup_alpha,
        "learning_rate": optimizer.lr,
        "lr_scheduler_type": "constant_with_warmup" if is_warmed_up else optimizer.schedule,  # its `constant` has no warm-up
        "warmup_steps": optimizer.warmup_steps,
        "weight_decay": optimizer.weight_decay,
        "adam_beta1": optimizer.adam_betas[0],
        "adam_beta2": optimizer.adam_betas[1],
        "max_grad_norm": optimizer.max_grad_norm or 0,
        "max_steps": optimizer_steps(config),
        "seed": training.seed,
        "save_strategy": "no" if training.checkpoint_every is None else "steps",
        "save_steps": (training.checkpoint_every or 1) * updates,
        "save_total_limit": training.keep_checkpoints,
        "eval_strategy": "no" if config.evaluation.every_steps is None else "steps",
        "eval_steps": (config.evaluation.every_steps or 1) * updates,
        "run_name": config.tracking.run_name,
        "report_to": list(config.tracking.also),
        "bf16": config.model.dtype == "bfloat16",
    }


def trl_arguments(config: RunConfig, *, prompt_width: int, on_cpu: bool, output: Path) -> dict[str, Any]:
    """Return the keyword arguments of `GRPOConfig` that mean the same as `config`.

    Optimizer and schedule are given to the trainer as objects as well, and those decide.

    Args:
        config: a configuration that `check_consistency` lets through.
        prompt_width: tokens of the longest prompt.
        on_cpu: keep TRL off the GPU.
        output: folder in which TRL may write.
    """
    rows = rows_per_minibatch(config)
    most = max(config.training.microbatch_tokens // (prompt_width + config.rollout.max_completion_tokens), 1)
    rows_per_pass = max(divisor for divisor in range(1, rows + 1) if rows % divisor == 0 and divisor <= most)
    return {
        **export_config(config),
        **in_passes(config, rows_per_pass),
        # This project writes checkpoints and evaluates; TRL trains, and logs the norm of gradients only where it clips.
        "save_strategy": "no",
        "eval_strategy": "no",
        "max_grad_norm": config.optimizer.max_grad_norm or float("inf"),
        "output_dir": str(output),
        "shuffle_dataset": False,  # the prompts come in this project's order
        "disable_dropout": True,
        "activation_checkpointing": False,
        "cast_lm_head_to_fp32": config.model.dtype == "bfloat16",
        "use_cpu": on_cpu,
        "logging_steps": 1,
        "logging_first_step": False,
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_num_workers": 0,
    }


def in_passes(config: RunConfig, rows_per_pass: int) -> dict[str, int]:
    """Return the batch sizes of one process that computes `rows_per_pass` completions at once, a divisor of a minibatch."""
    passes = rows_per_minibatch(config) // rows_per_pass
    return {
        "per_device_train_batch_size": rows_per_pass,
        "gradient_accumulation_steps": passes,
        "steps_per_generation": passes * config.loss.minibatches,
    }


def rows_per_minibatch(config: RunConfig) -> int:
    """Return the completions of one optimizer step."""
    return config.rollout.num_prompts_per_step * config.rollout.group_size // config.loss.minibatches


def updates_per_step(config: RunConfig) -> int:
    """Return the optimizer steps of one step, in which TRL counts."""
    return config.loss.epochs_per_rollout * config.loss.minibatches
