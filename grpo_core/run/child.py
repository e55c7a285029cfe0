"""The child processes of a run, started: with a lifeline, a log file of their own, and a state file that says how they are."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from grpo_core.errors import TrainingError
from grpo_core.machine.allocator import REUSED_MEMORY
from grpo_core.machine.disk import append_private
from grpo_core.machine.lifeline import LIFELINE_VARIABLE
from grpo_core.machine.slots import held_slot
from grpo_core.rewards.call_guard import WAITING, call_that_ended_process
from grpo_core.run.process_state import NOT_STARTED, ProcessState, write_process_state


def run_watched(
    module: str,
    arguments: Sequence[str],
    log_file: Path,
    *,
    look: Callable[[], None],
    stop: Callable[[subprocess.Popen[bytes]], None],
    report: Callable[[str], None],
    started: Callable[[], None] = lambda: None,
    python: str | None = None,
    state_file: Path | None = None,
    import_from: Sequence[str] = (),
) -> None:
    """Run `python -m module arguments` to its end; stop it if this process is interrupted.

    Args:
        module: what to run.
        arguments: its arguments.
        log_file: where its output goes.
        look: called again and again while it runs or waits for a slot; pauses for a moment. What it raises ends the child.
        stop: ends a child that still runs when this process was interrupted; may leave it to its end.
        report: takes a line about a wait: for a slot, or for a reward function.
        started: called when it has been started.
        python: its interpreter; None = this one.
        state_file: where its process id and, at the end, its exit code are written.
        import_from: more folders in which it finds modules.

    Raises:
        TrainingError: it ended with an exit code other than 0; the message is the last line that it wrote.
    """
    command = [interpreter(python), "-m", module, *arguments]
    with held_slot(look, report) as slot, held_lifeline() as lifeline:
        log = ChildLog(log_file)
        child = start_child(command, log_file, lifeline, slot=slot, state_file=state_file, import_from=import_from)
        try:
            started()
            while child.poll() is None:  # not child.wait(): what a signal handler raises is delivered at once
                look()
                log.report_waits(report)
        finally:
            _end(child, stop, state_file)
    if child.returncode:
        raise TrainingError(last_words(module, child.returncode, log_file))


class ChildLog:
    """What a child writes to its log, read line by line from where the log ended when this was made."""

    def __init__(self, file: Path) -> None:
        """Start after what earlier processes have written; the file need not be there."""
        self.file = file
        self._position = file.stat().st_size if file.exists() else 0

    def read(self, *, last: bool = False) -> list[str]:
        """Return the lines that are new and complete, without empty ones; the last time, also one that is not complete."""
        if not self.file.exists():  # the child waits for a slot
            return []
        with self.file.open("rb") as file:
            file.seek(self._position)
            text = file.read()
        complete = text if last else text[: text.rfind(b"\n") + 1]
        self._position += len(complete)
        return [line for line in complete.decode(errors="replace").splitlines() if line.strip()]

    def report_waits(self, report: Callable[[str], None]) -> None:
        """Report each new line that names a reward function which is waited for."""
        for line in self.read():
            if line.startswith(WAITING):
                report(line)


def _end(child: subprocess.Popen[bytes], stop: Callable[[subprocess.Popen[bytes]], None], state_file: Path | None) -> None:
    """Stop a child that still runs, and note that it has ended or was left to its end.

    Of one that has ended, what it left in its process group is killed: a user's code may have started processes. Servers that
    are to outlive a run have sessions of their own.
    """
    try:
        if child.poll() is None:
            stop(child)
    finally:
        code = child.returncode
        if code is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # most often nothing is left
                os.killpg(child.pid, signal.SIGKILL)
        write_process_state(state_file, ProcessState(pid=child.pid, returncode=code, left=code is None))


def finish_child(child: subprocess.Popen[bytes], tell: Callable[[], object] = lambda: None) -> None:
    """Ask a child to end and wait for that; whatever interrupts the waiting kills it.

    It is sent SIGTERM, after which a training finishes its step and writes a checkpoint (`training/signals.py`).

    Args:
        child: that runs.
        tell: tells a person about the wait.
    """
    try:
        child.send_signal(signal.SIGTERM)
        tell()
        child.wait()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


@contextlib.contextmanager
def held_lifeline() -> Iterator[int]:
    """Yield the end of a pipe that a child inherits; the other end is closed when this process leaves, however it does."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        for end in (read_end, write_end):
            os.close(end)


def start_child(
    command: Sequence[str],
    log_file: Path,
    lifeline: int,
    *,
    slot: tuple[int, ...] = (),
    state_file: Path | None = None,
    import_from: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, so that what is sent to this process's group does not reach it twice.

    Args:
        command: what to run, an interpreter first.
        log_file: where its output goes.
        lifeline: of `held_lifeline`.
        slot: descriptors that hold a slot; the child inherits them.
        state_file: where its process id is written.
        import_from: more folders in which it finds modules.

    Raises:
        TrainingError: it cannot be started.
    """
    try:
        with append_private(log_file) as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(lifeline, import_from),
                pass_fds=(lifeline, *slot),
                start_new_session=True,
            )
    except OSError as error:
        # Whoever waits for its end need not wait.
        write_process_state(state_file, ProcessState(pid=None, returncode=NOT_STARTED))
        raise TrainingError(f"training.python: {command[0]} cannot be started ({error.strerror})") from error
    write_process_state(state_file, ProcessState(pid=child.pid, returncode=None))
    return child


def _environment(lifeline: int, import_from: Sequence[str]) -> dict[str, str]:
    """Return the environment of a child."""
    return {
        **REUSED_MEMORY,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi counts, whose numbers people put into CUDA_VISIBLE_DEVICES
        **os.environ,
        LIFELINE_VARIABLE: str(lifeline),
        "PYTHONPATH": python_path(*import_from),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TQDM_DISABLE": "1",  # a log is no terminal; transformers' own bars obey it, too
    }


def interpreter(python: str | None) -> str:
    """Return the program that `training.python` names, with `~` written out; None = this process's interpreter."""
    program = python or sys.executable
    return os.path.expanduser(program)  # noqa: PTH111  (./python keeps its ./)


def python_path(*folders: str) -> str:
    """Return the PYTHONPATH of a child in which the repository root must be importable, whichever interpreter runs it.

    Args:
        folders: others in which it finds modules.
    """
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(part for part in (root, *folders, os.environ.get("PYTHONPATH")) if part)


def last_words(module: str, returncode: int, log_file: Path) -> str:
    """Return the message of a child that failed: the last line of its log, or what ended it."""
    if returncode < 0:
        return f"{module} was killed by {signal.Signals(-returncode).name}; its log is {log_file}"
    lines = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
    if call := call_that_ended_process(lines):
        fault = "it did not return within its bound (rewards[].cpu_seconds), and nothing could interrupt it"
        return f"{call}: {fault}; {log_file} has the line"
    return lines[-1] if lines else f"{module} ended with exit code {returncode} and wrote nothing"
