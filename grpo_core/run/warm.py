"""A process that has imported what a run needs, and waits to be told what it is to do.

Imports take four seconds of a core. A command starts this process first, then a server, its data and its tracking; the
training is ready to begin then. A sweep has the command of its next run ready, which has a training ready. `python -m
grpo_core.run.warm DESCRIPTOR [MODULE ...]` is the process: it gets log, lifeline and command through a socket, and ends when
nobody holds the other end any more.
"""

import contextlib
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

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


class Ready:
    """A process of this interpreter that imports, and waits."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
        """Start it.

        Args:
            environment: of the process, until it is told what to do.
            modules: to import, of a command, which then has a training ready itself; none = those of a training.
        """
        self._control, theirs = socket.socketpair()
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

    def become(
        self, arguments: Sequence[str], log: int, lifeline: int, environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes] | None":
        """Let it become `python -m arguments`; None where it has died.

        Args:
            arguments: a module, and what it is called with.
            log: descriptor of where its output goes.
            lifeline: descriptor of the pipe whose end of file ends it.
            environment: of the process.
        """
        with self._control:
            if self._process.poll() is not None:
                return None
            socket.send_fds(self._control, [b"."], [log, lifeline])
            self._control.sendall(json.dumps([list(arguments), dict(environment)]).encode())
        return self._process

    def end(self) -> None:
        """End it."""
        self._control.close()
        self._process.kill()  # it may still import
        self._process.wait()


ready: list[Ready] = []
"""At most one, for the training of the run that this process is the command of."""


@contextlib.contextmanager
def warmed(environment: Mapping[str, str]) -> Iterator[None]:
    """Have a process ready for a training while inside, in an environment as processes of a run get it."""
    if not ready:
        ready.append(Ready(environment))
    try:
        yield
    finally:
        end_ready()


def end_ready() -> None:
    """End it, where it is still ready."""
    while ready:
        ready.pop().end()


def main(descriptor: int, modules: Sequence[str]) -> None:
    """Import, wait, and become what is asked for."""
    with socket.socket(fileno=descriptor) as control:
        with gc_paused(), contextlib.suppress(Exception):  # who needs it raises it again, into its log
            if modules:
                from grpo_core.run import child, warm  # noqa: PLW0406  (this file is `__main__` here)

                warm.ready.append(Ready(child.child_environment()))
            for name in modules or OF_A_TRAINING:
                importlib.import_module(name)
        began, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not began:
            return
        with control.makefile() as stream:
            arguments, environment = json.load(stream)
    log, lifeline = descriptors
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [folder for folder in environment["PYTHONPATH"].split(os.pathsep) if folder not in sys.path]
    os.environ[LIFELINE_VARIABLE] = str(lifeline)
    sys.argv[1:] = arguments[1:]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
