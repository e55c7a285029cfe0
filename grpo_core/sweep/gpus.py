"""Which GPU each run of a local sweep gets: one of its own as long as there are enough, else as few to a GPU as possible."""

import os
from collections.abc import Sequence

from grpo_core.machine.gpus import SLOTS_VARIABLE
from grpo_core.machine.hardware import gpus

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none where there are none."""
    given = os.environ.get(VISIBLE_VARIABLE)
    if given is not None:
        return tuple(part.strip() for part in given.split(",") if part.strip() and part.strip() != "-1")
    return tuple(str(index) for index in range(len(gpus()[0])))


def gpu_variables(available: Sequence[str], taken: Sequence[str], concurrency: int) -> dict[str, str]:
    """Return the environment of the next run.

    Args:
        available: GPUs of the sweep.
        taken: the GPU of each run under way.
        concurrency: runs at a time; where they are more than the GPUs, the runs of one agree to share it.

    >>> gpu_variables(("0", "1"), ("0",), 2)
    {'CUDA_VISIBLE_DEVICES': '1'}
    """
    if not available:
        return {}
    chosen = min(available, key=taken.count)
    share = -(-concurrency // len(available))
    return {VISIBLE_VARIABLE: chosen, **({SLOTS_VARIABLE: str(share)} if share > 1 else {})}
