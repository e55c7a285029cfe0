"""A process that has imported what a run needs, and forks for each process that is to be one of the run.

Imports take four seconds of a core. A command starts this process first, then a server, its data and its tracking; its
training and its evaluations are forks then. A sweep has one for the commands of its runs, which share one for their trainings.
`python -m grpo_core.run.warm DESCRIPTOR [MODULE ...]` is the process: it gets commands, each with a log, a lifeline and a
socket for the answer, and ends when nobody can send it one any more.

What it has imported computes nothing yet, and ends its threads before a fork (OpenBLAS and jemalloc do). Where there is a GPU,
whose driver may not be forked, it becomes the first process that is asked for.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from grpo_core.machine.gpus import visible_gpus
from grpo_core.machine.process import LIFELINE_VARIABLE, gc_paused

OF_A_TRAINING = (
    "pandas",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "grpo_core.evaluation.runner",
    "grpo_core.training.session",
    "grpo_core.training.loop",
)
"""What nearly every one imports."""
MODULE = "grpo_core.run.warm"
ROOT, PACKAGES = Path(__file__).parents[2], ("grpo_core", "flows", "tasks")
MOST_BYTES = 2**20
"""Of a command with its environment."""
DESCRIPTORS = 3
"""That come with a command: its log, its lifeline, and where it is answered."""
FOR_ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What a batch system sends to every process of a job: the forks have a step to finish, and this process waits for them."""


class Forked:
    """A process that a warm one has forked, with what `subprocess.Popen` has for whoever watches it."""

    def __init__(self, answers: socket.socket, pid: int, warm: "subprocess.Popen[bytes]") -> None:
        """Take the socket on which its exit code will come, its id, and the process that has forked it."""
        self.pid, self._answers, self._warm = pid, answers, warm
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit code.

        Raises:
            TimeoutExpired: it runs after so many seconds.
        """
        if self.pid == self._warm.pid:  # what it is now may have left processes that hold the socket open
            self._answers.close()
            self.returncode = self._warm.wait(timeout)
        elif self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(MODULE, timeout or 0.0)
            with self._answers:
                answer = self._answers.recv(MOST_BYTES)
            self.returncode = int(answer) if answer else self._end_with_warm()
        return self.returncode

    def _end_with_warm(self) -> int:
        """The warm process was killed: what it has forked does not outlive it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return -signal.SIGKILL

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


Child = subprocess.Popen[bytes] | Forked


class Ready:
    """A process of this interpreter that imports, and waits."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
        """Start it.

        Args:
            environment: of the process.
            modules: to import, of a command, whose forks share one for their trainings; none = those of a training.
        """
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._owner, self._code = os.getpid(), newest_module()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def start(self, arguments: Sequence[str], log: int, lifeline: int, environment: Mapping[str, str]) -> Forked | None:
        """Return `python -m arguments` as a fork of it; None where it has died, or has imported modules that were edited since.

        Args:
            arguments: a module, and what it is called with.
            log: descriptor of where its output goes.
            lifeline: descriptor of the pipe whose end of file ends it.
            environment: of the process.
        """
        if newest_module() != self._code:
            return None
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(OSError):
            with theirs:
                asked = json.dumps([list(arguments), dict(environment)]).encode()
                socket.send_fds(self._control, [asked], [log, lifeline, theirs.fileno()])
            if answer := answers.recv(MOST_BYTES):
                return Forked(answers, int(answer), self._process)
        answers.close()
        return None

    def end(self) -> None:
        """End it, which only the process that has started it does: others have it from there."""
        self._control.close()
        if self._owner == os.getpid():
            self._process.kill()  # it may still import
            self._process.wait()


def newest_module() -> int:
    """Return when the newest of this project's modules was written, in nanoseconds."""
    return max(file.stat().st_mtime_ns for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


ready: list[Ready] = []
"""At most one, for the trainings and evaluations of the run that this process is the command of."""


@contextlib.contextmanager
def warmed(environment: Mapping[str, str]) -> Iterator[None]:
    """Have a process ready for those of a run while inside, in an environment as they get it."""
    if not ready:
        ready.append(Ready(environment))
    try:
        yield
    finally:
        end_ready()


def end_ready() -> None:
    """End it, where there is one."""
    while ready:
        ready.pop().end()


def main(descriptor: int, modules: Sequence[str]) -> None:
    """Import, and become what is asked for, in a fork for each."""
    with gc_paused(), contextlib.suppress(Exception):  # who needs it raises it again, into its log
        if modules:
            from grpo_core.run import child, warm  # noqa: PLW0406  (this file is `__main__` here)

            warm.ready.append(Ready(child.child_environment()))
        for name in modules or OF_A_TRAINING:
            importlib.import_module(name)
    gc.freeze()
    signal.pthread_sigmask(signal.SIG_BLOCK, FOR_ALL)
    if (asked := _serve(descriptor)) is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_ALL)
        _become(*asked)


def _serve(descriptor: int) -> tuple[bytes, int, int] | None:
    """Fork for each command, and report exit codes; return in the fork (command, log, lifeline), None where all is done."""
    control, running, forks = socket.socket(fileno=descriptor), dict[int, socket.socket](), not visible_gpus()
    with _noticed_ends() as ended:
        while True:
            readable = select.select([control.fileno(), ended], [], [])[0]
            if ended in readable:
                os.read(ended, MOST_BYTES)
                _report_ends(running)
            if control.fileno() not in readable:
                continue
            asked, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, DESCRIPTORS)
            if not asked:
                return None
            if not forks:
                control.close()
                return _answered(asked, *descriptors)
            if not (pid := _fork(descriptors)):
                os.setsid()
                for number in (control.detach(), descriptors[2], *(answers.detach() for answers in running.values())):
                    os.close(number)
                return asked, descriptors[0], descriptors[1]
            if pid > 0:
                running[pid] = socket.socket(fileno=descriptors.pop())
                with contextlib.suppress(OSError):
                    running[pid].sendall(str(pid).encode())
            for number in descriptors:
                os.close(number)


def _answered(asked: bytes, log: int, lifeline: int, answering: int) -> tuple[bytes, int, int]:
    """Say that this process is the one that was asked for."""
    with socket.socket(fileno=answering) as answers:
        answers.sendall(str(os.getpid()).encode())
    return asked, log, lifeline


def _fork(descriptors: Sequence[int]) -> int:
    """Return the id of a fork, 0 in it; -1 where none can be made, and who asks for it starts a process without this one."""
    if len(descriptors) < DESCRIPTORS:  # this process may open no more
        return -1
    try:
        return os.fork()
    except OSError:  # too many processes, or no memory
        return -1


@contextlib.contextmanager
def _noticed_ends() -> Iterator[int]:
    """Yield a descriptor that has something to read when a fork has ended."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)  # one that is ignored wakes nobody
    signal.set_wakeup_fd(writing)
    try:
        yield reading
    finally:  # in the fork, too
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, before)
        os.close(reading)
        os.close(writing)


def _report_ends(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as answers, contextlib.suppress(OSError):  # nobody may wait for it any more
                answers.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become(asked: bytes, log: int, lifeline: int) -> None:
    arguments, environment = json.loads(asked)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [folder for folder in environment["PYTHONPATH"].split(os.pathsep) if folder not in sys.path]
    os.environ[LIFELINE_VARIABLE] = str(lifeline)
    sys.argv[1:] = arguments[1:]
    if "numpy" in sys.modules:  # else a reward that draws from it would draw the same in every fork
        sys.modules["numpy"].random.seed()
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        _end(ended.code or 0)
    _end(0)


def _end(code: int) -> None:
    """End as an interpreter does, but leave its memory to the system: to free what was imported takes half a second."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as multiprocessing does in its forks
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
