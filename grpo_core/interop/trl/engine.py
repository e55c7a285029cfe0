"""A RunConfig as the arguments of TRL's GRPOConfig (TRL 1.16)."""

from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.config.derived import optimizer_steps
from grpo_core.config.trl_limits import LOSS_TYPES


def trl_arguments(config: RunConfig, *, prompt_width: int, on_cpu: bool, output: Path) -> dict[str, Any]:
    """Return the keyword arguments of `GRPOConfig` that mean what `config` says.

    Optimizer and schedule are handed over as objects and have no arguments here.

    Args:
        config: a configuration that `check_consistency` lets through.
        prompt_width: tokens of the longest prompt.
        on_cpu: keep TRL off the GPU.
        output: folder in which TRL may write.
    """
    rollout, loss, reference, minibatches = config.rollout, config.loss, config.reference, config.loss.minibatches
    rows = rollout.num_prompts_per_step * rollout.group_size
    width = prompt_width + rollout.max_completion_tokens
    rows_per_pass = _rows_per_pass(rows // minibatches, config.training.microbatch_tokens // width)
    synced = reference.sync_steps is not None
    low_precision = config.model.dtype == "bfloat16"
    return {
        "output_dir": str(output),
        "per_device_train_batch_size": rows_per_pass,
        "gradient_accumulation_steps": rows // minibatches // rows_per_pass,
        "steps_per_generation": rows // rows_per_pass,
        "num_iterations": loss.epochs_per_rollout,
        "num_generations": rollout.group_size,
        "max_completion_length": rollout.max_completion_tokens,
        "max_steps": optimizer_steps(config),
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k or 0,
        "beta": loss.beta,
        "epsilon": loss.clip_eps,
        "epsilon_high": loss.clip_eps_high,
        "delta": loss.dual_clip,  # above 1 + epsilon_high, as here, it acts on negative advantages only
        "loss_type": LOSS_TYPES[loss.aggregation],
        "scale_rewards": config.advantage.scale.removesuffix("_std"),
        "importance_sampling_level": loss.ratio,
        "use_bias_correction_kl": loss.kl_correction == "importance",
        "mask_truncated_completions": config.filtering.mask_truncated_completions,
        "reward_weights": [reward.weight for reward in config.rewards],
        "sync_ref_model": synced,
        # TRL counts optimizer steps.
        "ref_model_sync_steps": (reference.sync_steps or 1) * loss.epochs_per_rollout * minibatches,
        "ref_model_mixup_alpha": reference.mixup_alpha,
        "max_grad_norm": config.optimizer.max_grad_norm or float("inf"),
        "seed": config.training.seed,
        "shuffle_dataset": False,  # the prompts come in this project's order
        "disable_dropout": True,
        "activation_checkpointing": False,
        "bf16": low_precision,
        "cast_lm_head_to_fp32": low_precision,
        "use_cpu": on_cpu,
        "logging_steps": 1,
        "logging_first_step": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_num_workers": 0,
    }


def _rows_per_pass(rows: int, most: int) -> int:
    """Return the largest divisor of `rows` that is at most `most`, at least 1: TRL's passes have equally many rows."""
    return max(divisor for divisor in range(1, rows + 1) if rows % divisor == 0 and (divisor <= most or divisor == 1))
