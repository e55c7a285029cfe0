"""Which process is meant: its number and the time of its start, since a number is used again.

As Linux's /proc has them: psutil's time of a start is of the clock, and another one once the clock was set.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """One process for good."""

    pid: Annotated[int, Field(gt=0)]
    started: int
    """Clock ticks since the machine's boot."""


def identify(pid: int) -> ProcessId:
    """Return the identity of the process that has a number now.

    Raises:
        ProcessLookupError: there is none.
    """
    return ProcessId(pid=pid, started=int(_facts(pid)[19]))


def is_running(process: ProcessId) -> bool:
    """Return whether a process still runs: its number is not another one's, and it is more than an exit code."""
    try:
        facts = _facts(process.pid)
    except ProcessLookupError:
        return False
    return facts[0] != "Z" and int(facts[19]) == process.started


def _facts(pid: int) -> list[str]:
    """Return the fields of a process's `stat` after its name, which is in parentheses and may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
