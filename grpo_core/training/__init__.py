"""Training: rollouts -> batch -> update -> loop, and the process around it (`python -m grpo_core.training RUN_DIR`)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_core.config import RunConfig

TRAINING = "grpo_core.training"
"""What trains, as a process."""
LAUNCHER = "grpo_core.parallel.launch"
"""What starts several of them, and is itself started in their place."""
EVALUATE = "--evaluate"
"""Its argument: the native engine evaluates the last policy, too, while it is in memory (`evaluate_trained`)."""


def training_module(config: "RunConfig") -> str:
    """Return what is to be started, as a process, to train with a configuration."""
    return LAUNCHER if config.training.processes > 1 else TRAINING
