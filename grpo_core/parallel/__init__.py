"""Several processes that run one training: what they share out, how their weights are spread, what starts and ends them."""

import os

from grpo_core.machine.nodes import STORE_VARIABLE, node_count

OF_ONE_PROCESS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", STORE_VARIABLE)
"""Variables that the launcher sets; those that something else has set around a run are not handed on."""


def is_first() -> bool:
    """Return whether this is the first process of its training, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def is_one_of_several() -> bool:
    """Return whether this is a process of a training that has more."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def local_processes() -> int:
    """Return how many processes of this training run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def processes_here(processes: int) -> int:
    """Return how many of a training's processes run on this machine, before they do; on several nodes PET_NNODES is set."""
    return -(-processes // node_count())
