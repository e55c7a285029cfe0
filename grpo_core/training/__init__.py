"""Training: rollouts -> batch -> update -> loop, and the process around it (`python -m grpo_core.training RUN_DIR`)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from grpo_core.config import RunConfig

TRAINING = "grpo_core.training"
"""What trains, as a process."""
LAUNCHER = "grpo_core.parallel.launch"
"""What starts several of them, and is itself started in their place."""
EVALUATE = "--evaluate"
"""Its argument: the native engine evaluates the policies that it begins and ends with, too, while they are in memory
(`evaluate_initial`, `evaluate_trained`). Its value is the digest under which the first of them is kept for other runs."""


def training_module(config: "RunConfig") -> str:
    """Return what is to be started, as a process, to train with a configuration."""
    return LAUNCHER if config.training.processes > 1 else TRAINING


def training_arguments(run_path: "Path", evaluate: str | None) -> list[str]:
    """Return what a training is started with.

    Args:
        run_path: its folder.
        evaluate: None = it evaluates nothing; else the digest under which its first evaluation is kept for other runs, or
            nothing where it is not.
    """
    flag = [] if evaluate is None else [f"{EVALUATE}={evaluate}" if evaluate else EVALUATE]
    return [str(run_path), *flag]
