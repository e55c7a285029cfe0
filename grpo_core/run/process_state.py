"""The state file of a process of a run: its process id and, at the end, its exit code. Whoever watches it reads them here."""

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from grpo_core.machine.disk import write_whole
from grpo_core.machine.jsonfile import STORED, build, read_json

STOP_SECONDS = 20.0
"""How long a flow that was cancelled waits for its child: Prefect kills it after 30 s, and MLflow must hear of it before."""
POLL_SECONDS = 0.1
NOT_STARTED = 127
"""Exit code in the state file of a process that could not be started; the shell's."""


@dataclass(frozen=True, kw_only=True, config=STORED)
class ProcessState:
    """What the state file of a process holds."""

    pid: Annotated[int, Field(gt=0)] | None
    """None for a process that could not be started."""
    returncode: int | None
    """None while it runs."""
    left: bool = False
    """Whether it was left to its end: nobody waits for its exit code."""

    @property
    def has_ended(self) -> bool:
        """Whether nobody need wait for it."""
        return self.returncode is not None or self.left


NOT_YET = ProcessState(pid=None, returncode=None)
"""Before it has started."""


def write_process_state(file: Path | None, state: ProcessState) -> None:
    """Write the state of a process, if it has a file for it.

    Raises:
        OSError: it cannot be written.
    """
    if file is None:
        return
    text = json.dumps(asdict(state)) + "\n"
    try:
        write_whole(file, text)
    except OSError:  # a full disk has no room for a new file; who waits for the process must learn of its end all the same
        if not file.exists():
            raise
        with file.open("r+") as stream:
            stream.write(text)
            stream.truncate()


def read_process_state(file: Path) -> ProcessState:
    """Return the state of a process; NOT_YET where there is no file of it, or something else."""
    try:
        return build(ProcessState, read_json(file))
    except (OSError, ValueError):
        return NOT_YET


def end_process(state_file: Path, patience: float = STOP_SECONDS) -> None:
    """End the running process of `state_file` even if it hangs: SIGTERM, and after `patience` seconds SIGKILL.

    Whoever started it has not reaped it yet while the state file shows no exit code, so the process id is still its own.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        state = read_process_state(state_file)
        if state.has_ended or state.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(state.pid, number)
        deadline = time.monotonic() + patience
        while not process_has_ended(state_file) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def ensure_ended(state_file: Path) -> None:
    """Note that the process has ended if it never began, so that nobody waits for it."""
    if read_process_state(state_file) == NOT_YET:
        write_process_state(state_file, ProcessState(pid=None, returncode=NOT_STARTED))


def process_has_started(state_file: Path) -> bool:
    """Return whether the process of `state_file` has been started: it may have to wait for a slot."""
    return read_process_state(state_file).pid is not None


def process_has_ended(state_file: Path) -> bool:
    """Return whether the process of `state_file` has ended or was left to its end; False before it has started."""
    return read_process_state(state_file).has_ended


def process_runs(state_file: Path) -> bool:
    """Return whether the process of `state_file` is there now, also where its end was not noted: its flow was killed."""
    state = read_process_state(state_file)
    return state.returncode is None and Path(f"/proc/{state.pid}").exists()
