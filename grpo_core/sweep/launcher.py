"""What starts the runs of a sweep: `local` processes or a `deployed` flow; both are asked now and then what has ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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
    def goes_on(self) -> bool:
        """Whether it was begun before."""
        return self.run_dir.config_file.exists()


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
    """Starts runs and tells of their ends."""

    outlives_the_sweep: bool
    """Whether runs go on by themselves when the sweep fails, to be found again when it goes on."""

    def start(self, job: Job) -> None:
        """Begin a run, or go on with one that was begun before."""
        ...

    def poll(self) -> list[Ended]:
        """Return the runs that have ended since this was last asked."""
        ...

    def interrupt(self) -> None:
        """Ask all runs under way to finish their step and checkpoint, and wait for it as long as there is time."""
        ...
