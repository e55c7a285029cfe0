"""A process that has imported what a run computes with, and waits to be told what it is to do.

Imports take four seconds of a core. A command starts this process first, then a server, its data and its tracking; the
training is ready to begin then. `python -m grpo_core.run.warm DESCRIPTOR` is the process: it gets log,
lifeline and command through a socket, and ends when nobody holds the other end any more.
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

IMPORTED = (
    "pandas",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "grpo_core.evaluation.runner",
    "grpo_core.training.session",
    "grpo_core.training.loop",
)
"""By nearly every run."""
MODULE = "grpo_core.run.warm"
_ready: list[tuple["subprocess.Popen[bytes]", socket.socket]] = []
"""It, until it is taken."""


@contextlib.contextmanager
def warmed(environment: Mapping[str, str]) -> Iterator[None]:
    """Have a process of this interpreter ready while inside, in an environment as processes of a run get it."""
    _start(environment)
    try:
        yield
    finally:
        end_ready()


def end_ready() -> None:
    """End it, where it is still ready."""
    while _ready:
        process, control = _ready.pop()
        control.close()
        process.kill()  # it may still import
        process.wait()


def _start(environment: Mapping[str, str]) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    _ready.append((process, ours))


def take(arguments: Sequence[str], log: int, lifeline: int, environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | None":
    """Let the process that is ready become `python -m arguments`; None where none is ready.

    Args:
        arguments: a module, and what it is called with.
        log: descriptor of where its output goes.
        lifeline: descriptor of the pipe whose end of file ends it.
        environment: of the process.
    """
    if not _ready:
        return None
    process, control = _ready.pop(0)
    with control:
        if process.poll() is not None:
            return None
        socket.send_fds(control, [b"."], [log, lifeline])
        control.sendall(json.dumps([list(arguments), dict(environment)]).encode())
    return process


def main(descriptor: int) -> None:
    """Import, wait, and become what is asked for."""
    with socket.socket(fileno=descriptor) as control:
        with gc_paused(), contextlib.suppress(Exception):  # who needs it raises it again, into its log
            for name in IMPORTED:
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
    main(int(sys.argv[1]))
