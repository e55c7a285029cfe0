"""Where tensors live, and how many threads work on them."""

import os

import torch

from grpo_core.config import TrainingConfig


def pick_device(wanted: str) -> torch.device:
    """Return the device of `training.device`; `auto` is cuda where there is one."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)


def pin_threads(config: TrainingConfig) -> int:
    """Fix the number of CPU threads, which decides the order of floating-point sums; return it."""
    threads = config.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    return threads
