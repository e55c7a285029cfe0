"""The child processes of a run: started with a lifeline, a log and a state file, watched, and ended.

The state file of a process holds its id and, at the end, its exit code; whoever watches it from elsewhere reads them there.
"""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from grpo_core.config import RunConfig
from grpo_core.config.derived import code_in
from grpo_core.config.origin import find_config
from grpo_core.errors import TrainingError, raised_as
from grpo_core.machine.disk import append_private, read_json, write_whole
from grpo_core.machine.process import LIFELINE_VARIABLE
from grpo_core.machine.slots import held_slots
from grpo_core.parallel import OF_ONE_PROCESS
from grpo_core.rewards.call_guard import WAITING, call_that_ended_process
from grpo_core.run.folder import RunDir
from grpo_core.run.warm import Child, ready

STOP_SECONDS = 20.0
"""How long a flow that was cancelled waits for its child: Prefect kills it after 30 s, and MLflow must hear of it before."""
POLL_SECONDS = 0.1
NOT_STARTED = 127
"""Exit code in the state file of a process that could not be started; the shell's."""
REUSED_MEMORY = {
    "GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={2**25}"
    f":glibc.malloc.trim_threshold={2**60}:glibc.malloc.top_pad={2**28}"
}
"""Environment of a training, whose steps on a CPU allocate and free gigabytes: what one has freed is kept for the next.

By default glibc gives it back to the system and takes it again as fresh pages, which have to be zeroed. Here it has pages of
2 MB, grows by 256 MB at a time and never shrinks (EXPERIMENTS.md has the figures). Tensors of 32 MB and more still come from
the system one by one: in the heap, small results between them would keep it from being used again.
"""


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """What the state file of a process holds: its id, None if it was never started, and its exit code, None while it runs.

    Nobody waits for the exit code of a process that was `left` to its end.
    """

    pid: int | None
    returncode: int | None
    left: bool = False


NOT_YET = ProcessState(pid=None, returncode=None)


def run_watched(
    module: str,
    arguments: Sequence[str],
    log_file: Path,
    *,
    look: Callable[[], None],
    stop: Callable[[Child], None],
    report: Callable[[str], None],
    silent: Callable[[float], object] = lambda _: None,
    python: str | None = None,
    state_file: Path | None = None,
    import_from: Sequence[str] = (),
    processes: int = 1,
) -> None:
    """Run `python -m module arguments` to its end; stop it if this process is interrupted.

    Args:
        module: what to run.
        arguments: its arguments.
        log_file: where its output goes.
        look: called again and again while it runs or waits for a slot; pauses for a moment. What it raises ends the child.
        stop: ends a child that still runs when this process was interrupted; may leave it to its end.
        report: takes a line about a wait: for a slot, or for a reward function.
        silent: takes again and again for how many seconds it has been running, where nothing else follows what it does.
        python: its interpreter; None = this one.
        state_file: where its process id and, at the end, its exit code are written.
        import_from: more folders in which it finds modules.
        processes: of a training, on this machine; each takes a slot.

    Raises:
        ConfigError: there are fewer slots than processes.
        TrainingError: it ended with an exit code other than 0; the message is the last line that it wrote.
    """
    command = [interpreter(python), "-m", module, *arguments]
    with held_slots(processes, look, report) as slots, held_lifeline() as lifeline:
        log = ChildLog(log_file)
        child = _start(command, log_file, (lifeline, *slots.descriptors), import_from, slots.variables, processes=processes)
        try:
            write_process_state(state_file, ProcessState(pid=child.pid, returncode=None))
            _watch(child, log, look, silent, report)
        finally:
            _end(child, stop, state_file)
    if child.returncode:
        raise TrainingError(last_words(module, child.returncode, log_file))


def _watch(
    child: Child,
    log: "ChildLog",
    look: Callable[[], None],
    silent: Callable[[float], object],
    report: Callable[[str], None],
) -> None:
    began = time.monotonic()
    while child.poll() is None:  # not child.wait(): what a signal handler raises is delivered at once
        look()
        silent(time.monotonic() - began)
        for line in (line for line in log.read() if line.startswith(WAITING)):
            report(line)


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


def _end(child: Child, stop: Callable[[Child], None], state_file: Path | None) -> None:
    """Stop a child that still runs, and note that it has ended or was left to its end.

    Of one that has ended, what it left in its session is killed: a user's code may have started processes. Servers that are to
    outlive a run have sessions of their own.
    """
    try:
        if child.poll() is None:
            stop(child)
    finally:
        code = child.returncode
        if code is not None:
            for pid in psutil.pids():
                with contextlib.suppress(ProcessLookupError, PermissionError):  # one that has just ended, or another user's
                    if os.getsid(pid) == child.pid:
                        os.kill(pid, signal.SIGKILL)
        write_process_state(state_file, ProcessState(pid=child.pid, returncode=code, left=code is None))


def finish_child(child: Child, tell: Callable[[], object] = lambda: None) -> None:
    """Ask a child to end and wait for that; whatever interrupts the waiting kills it.

    It is sent SIGTERM, after which a training finishes its step and writes a checkpoint (`training/ending.py`).

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


def _start(
    command: Sequence[str],
    log_file: Path,
    descriptors: tuple[int, ...],
    import_from: Sequence[str],
    variables: Mapping[str, str],
    *,
    processes: int,
) -> Child:
    """Start a child in a session of its own, so that what is sent to this process's group does not reach it twice.

    It is a fork of one that is ready (`run.warm`), but where slots are held: that was started before its GPUs were known.

    Args:
        command: what to run, an interpreter first.
        log_file: where its output goes.
        descriptors: that it inherits: of its lifeline, first, and those that hold a slot.
        import_from: more folders in which it finds modules.
        variables: of its environment, that name its GPUs.
        processes: of the training; what starts several imports nothing, so that it is no fork.

    Raises:
        TrainingError: it cannot be started.
    """
    environment = {**child_environment(*import_from), **variables, LIFELINE_VARIABLE: str(descriptors[0])}
    with (
        append_private(log_file) as log,
        raised_as(TrainingError, f"training.python: {command[0]} cannot be started ({{cause}})", OSError),
    ):
        may_be_ready = processes == len(descriptors) == 1 and bool(ready) and command[0] == sys.executable
        if may_be_ready and (child := ready[-1].start(command[2:], log.fileno(), descriptors[0], environment)) is not None:
            return child
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=descriptors,
            start_new_session=True,
        )


def child_environment(*import_from: str) -> dict[str, str]:
    """Return the variables of a process of a run.

    Args:
        import_from: more folders in which it finds modules.
    """
    return {
        **REUSED_MEMORY,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi counts, whose numbers people put into CUDA_VISIBLE_DEVICES
        **{name: value for name, value in os.environ.items() if name not in OF_ONE_PROCESS},
        "PYTHONPATH": python_path(*import_from),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TQDM_DISABLE": "1",  # a log is no terminal; transformers' own bars obey it, too
    }


def interpreter(python: str | None) -> str:
    """Return the program that `training.python` names, with `~` written out; None = this process's interpreter."""
    return os.path.expanduser(python or sys.executable)  # noqa: PTH111  (./python keeps its ./)


def python_path(*folders: str) -> str:
    """Return the PYTHONPATH of a child in which the repository root must be importable, whichever interpreter runs it.

    Args:
        folders: others in which it finds modules.
    """
    return os.pathsep.join(filter(None, (str(Path(__file__).resolve().parents[2]), *folders, os.environ.get("PYTHONPATH"))))


def last_words(module: str, returncode: int, log_file: Path) -> str:
    """Return the message of a child that failed: the last line of its log, or what ended it."""
    if returncode < 0:
        return f"{module} was killed by {signal.Signals(-returncode).name}; its log is {log_file}"
    lines = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
    if (call := call_without_end(lines, log_file)) is not None:
        return call
    return lines[-1] if lines else f"{module} ended with exit code {returncode} and wrote nothing"


def call_without_end(lines: Sequence[str], log_file: Path) -> str | None:
    """Return the message about a reward function that did not return, if the last lines of a log are about one."""
    call = call_that_ended_process(lines)
    return call and f"{call}: it did not return within its bound (rewards[].cpu_seconds); {log_file} has the line"


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
    """Return the state of a process; NOT_YET where there is no file of it."""
    try:
        return ProcessState(**read_json(file))
    except (OSError, TypeError, ValueError):  # not there, or just being written
        return NOT_YET


def end_process(state_file: Path, patience: float = STOP_SECONDS) -> None:
    """End the running process of `state_file` even if it hangs: SIGTERM, and after `patience` seconds SIGKILL.

    Whoever started it has not reaped it yet while the state file shows no exit code, so the process id is still its own.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        state = read_process_state(state_file)
        if process_has_ended(state_file) or state.pid is None:
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


def is_of_process(holder: str, state_file: Path) -> bool:
    """Return whether a holder of a lock (`process 4711`) is the process of `state_file`, or one that it has started."""
    pid, word = read_process_state(state_file).pid, holder.rpartition(" ")[2]
    try:
        return pid is not None and pid in (int(word), psutil.Process(int(word)).ppid())
    except (ValueError, psutil.NoSuchProcess):  # of another container; it has just ended
        return False


def process_has_ended(state_file: Path) -> bool:
    """Return whether the process of `state_file` has ended or was left to its end; False before it has started."""
    state = read_process_state(state_file)
    return state.returncode is not None or state.left


def process_runs(state_file: Path) -> bool:
    """Return whether the process of `state_file` is there now, also where its end was not noted: its flow was killed."""
    state = read_process_state(state_file)
    return state.returncode is None and state.pid is not None and psutil.pid_exists(state.pid)


FOLDERS_VARIABLE = "GRPO_IMPORT_FROM"
"""More folders, separated as in PATH; a sweep sets it for its runs, whose configuration is a copy in the sweep's folder."""


def import_folders(config: RunConfig, source: Path | str | None = None) -> tuple[str, ...]:
    """Return the folders from which a run that starts here imports its reward functions; none where all are built in.

    Args:
        config: of the run.
        source: its configuration's file, or the name of a preset; None = it comes from no file.
    """
    modules = [code.module for code in code_in(config) if code.module is not None]
    if not modules:
        return ()
    beside = "" if source is None else str(find_config(source).parent.resolve())
    # As `grpo init` names them: from the folder above.
    above = [str(Path(beside).parent)] if beside and Path(beside).name in {name.partition(".")[0] for name in modules} else []
    found = (".", beside, *above, *os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep))
    return tuple(dict.fromkeys(str(Path(folder).resolve()) for folder in found if folder))


def import_from(folders: Iterable[str]) -> None:
    """Let this process find modules in some folders, behind all others."""
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def import_as_at_start(run_dir: RunDir) -> None:
    """Let this process find the modules of a run's reward functions where the run found them when it started.

    Raises:
        JournalError: origin.json was changed into something else.
    """
    import_from(run_dir.read_origin().import_from)


def is_own_folder(folder: Path) -> bool:
    """Return whether a folder belongs to this user or root and others cannot put a module into it."""
    return folder.is_dir() and folder.stat().st_uid in (0, os.getuid()) and not folder.stat().st_mode & stat.S_IWOTH
