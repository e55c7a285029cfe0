"""The lifeline of a child process: an inherited pipe whose other end is held by the process that started it.

End-of-file on it means that this process has died, however it died. A training looks at it between steps
(`training/signals.py`); a process with nothing to save ends at once.
"""

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

LIFELINE_VARIABLE = "GRPO_LIFELINE_FD"
"""Environment variable that holds the number of the inherited file descriptor."""


def lifeline_from_environment() -> int | None:
    """Return the lifeline's file descriptor, None where the process was started by hand."""
    value = os.environ.get(LIFELINE_VARIABLE)
    return int(value) if value else None


def exit_with_lifeline() -> None:
    """From now on, end this process at once when the one that started it has died."""
    descriptor = lifeline_from_environment()
    if descriptor is not None:
        threading.Thread(target=_exit_at_end_of_file, args=(descriptor,), daemon=True).start()


def _exit_at_end_of_file(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os._exit(1)


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
