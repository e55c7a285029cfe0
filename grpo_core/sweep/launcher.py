"""What starts the runs of a sweep: `local` processes or a `deployed` flow; both are polled for what has ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep."""

    arm: int
    seed: int
    name: str
    """`β=0.04 G=8 sync=10 seed=1`."""
    base: Path
    """Configuration file."""
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
