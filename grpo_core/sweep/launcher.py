"""What starts the runs of a sweep: `local` processes, each on a GPU, or a `deployed` flow; both are polled for what has ended.

A local run gets a GPU of its own as long as there are enough; else there are as few runs to a GPU as possible.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grpo_core.machine.gpus import SLOTS_VARIABLE, gpus
from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep."""

    arm: int
    seed: int
    name: str
    """`β=0.04 G=8 sync=10 seed=1`."""
    base: Path
    overrides: Mapping[str, Any]
    run_dir: RunDir
    log_file: Path

    @property
    def key(self) -> tuple[int, int]:
        """(arm, seed)."""
        return self.arm, self.seed

    @property
    def was_begun(self) -> bool:
        """Whether it is to be resumed."""
        return self.run_dir.config_file.exists()

    @property
    def is_held(self) -> bool:
        """Whether a flow works in its folder, whatever Prefect knows of it."""
        return lock_holder(self.run_dir.lock_file) is not None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run whose flow has ended."""

    job: Job
    failure: str | None = None
    """Why its flow failed; None where it came to its end."""
    cancelled: bool = False
    """Whether a person has cancelled it."""
    crashed: bool = False
    """Whether its process was lost, so that it is worth another try."""


class Launcher(Protocol):
    """Starts runs and reports their ends."""

    outlives_the_sweep: bool
    """Whether runs continue by themselves when the sweep fails, to be found again when it is resumed."""

    def start(self, job: Job) -> None:
        """Begin a run, or resume one that was begun before."""

    def poll(self) -> list[Ended]:
        """Return the runs that have ended since the last poll."""

    def interrupt(self) -> None:
        """Ask all runs under way to finish their step and checkpoint, and wait for it as long as there is time."""


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
