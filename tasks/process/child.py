"""Start, watch and stop the processes that hold the GPU; in a run, the only sender of signals to them.

A child runs in a session of its own, so that what is sent to the flow's process group does not reach it twice. It holds one end
of a pipe, its lifeline: when the flow process dies, however it dies, the pipe closes and the child stops cleanly.
Its output goes to a file, which outlives both, and from there, line by line, to the flow run's log.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.exceptions import MissingContextError

from grpo_core.errors import TrainingError
from grpo_core.machine.disk import append_private
from grpo_core.machine.lifeline import LIFELINE_VARIABLE
from grpo_core.machine.slots import held_slot
from grpo_core.run.process_state import NOT_STARTED, STOP_SECONDS, ProcessState, write_process_state
from tasks.process.cancellation import CancelWatch
from tasks.process.context import deployed_flow_run, python_path
from tasks.run.progress import say

INTERRUPTED = "interrupted: a training finishes its step and checkpoints before it ends; a second Ctrl-C or SIGTERM kills it\n"


def run_child(
    module: str, arguments: Sequence[str], log_file: Path, python: str | None = None, state_file: Path | None = None
) -> None:
    """Run `python -m module arguments` to its end; stop it cleanly if this process is interrupted or its flow run cancelled.

    A training that is stopped in a long step is left to finish it: it checkpoints and ends by itself (`training/signals.py`).

    Args:
        module: what to run.
        arguments: its arguments.
        log_file: where its output goes.
        python: its interpreter; None = this one.
        state_file: where its process id and, at the end, its exit code are written.

    Raises:
        TrainingError: it ended with an exit code other than 0; the message is the last line that it wrote.
        RunCancelledError: the flow run was cancelled and Prefect did not deliver it.
    """
    output = _Output(log_file)
    command = [python or sys.executable, "-m", module, *arguments]
    with CancelWatch() as cancellation, held_slot(cancellation.pause, say) as slot, _lifeline() as lifeline:
        child = _start(command, log_file, lifeline, slot, state_file)
        try:
            while child.poll() is None:  # not child.wait(): what a signal handler raises is delivered at once
                cancellation.pause()
                output.forward()
        finally:
            try:
                _stop(child)
            finally:
                output.forward(last=True)
                code = child.returncode
                write_process_state(state_file, ProcessState(pid=child.pid, returncode=code, left=code is None))
    if child.returncode:
        raise TrainingError(_last_words(module, child.returncode, log_file))


@contextlib.contextmanager
def _lifeline() -> Iterator[int]:
    """Yield the end of a pipe that a child inherits; the other end is closed when this process leaves, however it does."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        for end in (read_end, write_end):
            os.close(end)


def _start(
    command: list[str], log_file: Path, lifeline: int, slot: tuple[int, ...], state_file: Path | None
) -> subprocess.Popen[bytes]:
    environment = {
        # Huge pages for large tensors: a CPU training allocates gigabytes a step, otherwise 4 KiB at a time.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        **os.environ,
        LIFELINE_VARIABLE: str(lifeline),
        "PYTHONPATH": python_path(),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    try:
        with append_private(log_file) as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(lifeline, *slot),
                start_new_session=True,
            )
    except OSError as error:
        write_process_state(
            state_file, ProcessState(pid=None, returncode=NOT_STARTED)
        )  # whoever waits for its end need not wait
        raise TrainingError(f"training.python: {command[0]} cannot be started ({error.strerror})") from error
    write_process_state(state_file, ProcessState(pid=child.pid, returncode=None))
    return child


class _Output:
    """What a child writes, handed on to the flow run's log."""

    def __init__(self, log_file: Path) -> None:
        """Start after what earlier processes have written."""
        self._file = log_file
        self._position = log_file.stat().st_size if log_file.exists() else 0
        try:
            self._logger: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()
        except MissingContextError:  # called outside a flow run
            self._logger = logging.getLogger(__name__)

    def forward(self, last: bool = False) -> None:
        """Hand on the lines that are complete; the last time, also one that is not."""
        with self._file.open("rb") as file:
            file.seek(self._position)
            text = file.read()
        complete = text if last else text[: text.rfind(b"\n") + 1]
        self._position += len(complete)
        for line in complete.decode(errors="replace").splitlines():
            if line.strip():
                self._logger.info("%s: %s", self._file.stem, line)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask a child that is still running to end: SIGTERM, which finishes the step and checkpoints.

    At a terminal its end is waited for, and a second Ctrl-C kills it. A worker's flow would itself be killed while it waits:
    it leaves the child to its end.
    """
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    if deployed_flow_run() is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
        return
    with contextlib.suppress(OSError):  # the terminal may be gone
        sys.stderr.write(INTERRUPTED)
    try:
        child.wait()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _last_words(module: str, returncode: int, log_file: Path) -> str:
    """Return the message of a child that failed: the last line of its log, or what killed it."""
    if returncode < 0:
        return f"{module} was killed by {signal.Signals(-returncode).name}; its log is {log_file}"
    lines = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"{module} ended with exit code {returncode} and wrote nothing"
