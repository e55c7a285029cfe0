"""AdamW and its learning-rate schedule."""

import math
from collections.abc import Callable

from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from grpo_core.config import OptimizerConfig


def build_optimizer(policy: PreTrainedModel, config: OptimizerConfig, total_steps: int) -> tuple[AdamW, LambdaLR]:
    """Return AdamW over all trainable parameters and its schedule over `total_steps` optimizer steps."""
    optimizer = AdamW(
        [parameter for parameter in policy.parameters() if parameter.requires_grad],
        lr=config.lr,
        betas=config.adam_betas,
        weight_decay=config.weight_decay,
        fused=True,
    )
    return optimizer, LambdaLR(optimizer, lr_factor(config, total_steps))


def lr_factor(config: OptimizerConfig, total_steps: int) -> Callable[[int], float]:
    """Return the factor on `lr` for optimizer step 0, 1, ...: linear warm-up, then constant, linear to 0 or cosine to 0."""

    def factor(index: int) -> float:
        if index < config.warmup_steps:
            return (index + 1) / config.warmup_steps
        progress = (index - config.warmup_steps) / max(total_steps - config.warmup_steps, 1)
        if config.schedule == "linear":
            return max(0.0, 1 - progress)
        if config.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        return 1.0

    return factor
