"""A RunConfig as the arguments of TRL's GRPOConfig (TRL 1.16): the table of keys, taken the other way round."""

from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.interop.trl.batches import in_passes, rows_per_minibatch
from grpo_core.interop.trl.keys import export_config


def trl_arguments(config: RunConfig, *, prompt_width: int, on_cpu: bool, output: Path) -> dict[str, Any]:
    """Return the keyword arguments of `GRPOConfig` that mean the same as `config`.

    Optimizer and schedule are given to the trainer as objects as well, and those decide.

    Args:
        config: a configuration that `check_consistency` lets through.
        prompt_width: tokens of the longest prompt.
        on_cpu: keep TRL off the GPU.
        output: folder in which TRL may write.
    """
    width = prompt_width + config.rollout.max_completion_tokens
    rows_per_pass = _largest_divisor(rows_per_minibatch(config), config.training.microbatch_tokens // width)
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


def _largest_divisor(rows: int, most: int) -> int:
    """Return the largest divisor of `rows` that is at most `most`, at least 1: TRL's passes have equally many rows."""
    return max(divisor for divisor in range(1, rows + 1) if rows % divisor == 0 and (divisor <= most or divisor == 1))
