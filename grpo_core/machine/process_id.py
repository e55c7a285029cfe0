"""Which process is meant: its number and the time of its start, since a number is used again. As Linux's /proc knows them."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

PROC = Path("/proc")
POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """One process for good: a number is used again, a number with the time of its start is not."""

    pid: Annotated[int, Field(gt=0)]
    started: int
    """Clock ticks since the machine's boot, as the kernel counts them: setting the clock changes nothing."""


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


def group_of(leader: ProcessId) -> tuple[ProcessId, ...]:
    """Return the processes of the group that a process leads, itself first; none once it has ended.

    Where the leader is gone it cannot be known whether a group of its number is still the same one.
    """
    if not is_running(leader):
        return ()
    return (leader, *(process for process in _members(leader.pid) if process != leader))


def kill_processes(processes: Iterable[ProcessId], patience: float) -> bool:
    """Kill processes and wait for their end, at most `patience` seconds; return whether none is left."""
    remaining = [process for process in processes if is_running(process)]
    for process in remaining:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + patience
    while (remaining := [process for process in remaining if is_running(process)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return not remaining


def _members(group: int) -> Iterator[ProcessId]:
    for path in PROC.iterdir():
        if path.name.isdecimal():
            try:
                facts = _facts(int(path.name))
            except ProcessLookupError:
                continue
            if int(facts[2]) == group and facts[0] != "Z":
                yield ProcessId(pid=int(path.name), started=int(facts[19]))


def _facts(pid: int) -> list[str]:
    """Return the fields of a process's `stat` after its name, which is in parentheses and may hold anything.

    Raises:
        ProcessLookupError: there is none.
    """
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
