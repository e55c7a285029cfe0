"""Where tensors live, and how many threads work on them."""

import os

import torch

from grpo_core.config import TrainingConfig
from grpo_core.errors import ConfigError


def pick_device(wanted: str) -> torch.device:
    """Return the device of `training.device`; `auto` is cuda where there is one.

    Raises:
        ConfigError: cuda is wanted and there is none.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("training.device: cuda, but torch finds no CUDA device here; set it to auto or cpu")
    return torch.device(wanted)


def pin_threads(config: TrainingConfig) -> int:
    """Fix the number of CPU threads, which decides the order of floating-point sums; return it."""
    threads = config.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    return threads
