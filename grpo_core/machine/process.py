"""This process itself: its lifeline to its parent, imports without the collector of cycles, output whose reader may leave."""

import atexit
import contextlib
import ctypes
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_core.text import visible

SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of <sys/prctl.h>."""
LIBC = ctypes.CDLL(None)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Import what is inside without looking for garbage; what is there afterwards is never looked at again.

    For imports only: a cycle that is dropped inside stays in memory. The end of the process is faster, too: destructors run as
    ever, and the system frees the rest at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
        atexit.unregister(gc.freeze)  # once, however often this is used
        atexit.register(gc.freeze)


@contextlib.contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """Write inside to standard output or error; once nobody reads one of them, what is written to it goes nowhere.

    A run does not fail because nobody looks at its lines any more, as it does not when its terminal is closed under `nohup`.
    """
    try:
        yield
    except BrokenPipeError:
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            try:
                stream.flush()
            except BrokenPipeError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)


LIFELINE_VARIABLE = "GRPO_LIFELINE_FD"
"""Environment variable that holds the number of the inherited file descriptor."""


def lifeline_from_environment() -> int | None:
    """Return the lifeline's file descriptor, None where the process was started by hand."""
    value = os.environ.get(LIFELINE_VARIABLE)
    return int(value) if value else None


def exit_with_lifeline(until: int | None = None) -> None:
    """From now on, end this process at once when the one that started it has died.

    Args:
        until: descriptor of a pipe whose end of file ends that; None = nothing does.
    """
    descriptor = lifeline_from_environment()
    if descriptor is not None:
        threading.Thread(target=_exit_at_end_of_file, args=(descriptor, until), daemon=True).start()


def _exit_at_end_of_file(descriptor: int, until: int | None) -> None:
    watched = [descriptor] if until is None else [descriptor, until]
    while until not in (ready := select.select(watched, [], [])[0]):
        if descriptor in ready and not os.read(descriptor, 1):
            os._exit(1)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Let SIGTERM, SIGINT and the death of the process that started this one end it at once while inside: nothing is lost."""
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGINT)}
    until, ours = os.pipe()  # the thread that waits for its end keeps the one
    exit_with_lifeline(until)
    try:
        yield
    finally:
        os.close(ours)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def wait(process: subprocess.Popen[bytes], output: int, seconds: float, mark: bytes, then: float) -> float:
    """Wait for a process for `seconds`, or `then` from when `mark` is in its output, a file; return which bound counted."""
    begun, is_marked = time.monotonic(), False
    while process.poll() is None and time.monotonic() < begun + seconds:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        if not is_marked and mark in os.pread(output, 2**20, 0):
            begun, seconds, is_marked = time.monotonic(), then, True
    return seconds


def end_with_parent(parent: int) -> None:
    """Let the kernel end this process when the one that started it dies, however it does and whatever this one does then.

    Args:
        parent: its process id; it may have died already.
    """
    LIBC.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def kill_itself(number: int) -> None:
    """End this process by a signal, as if it had not been caught."""
    with contextlib.suppress(OSError):  # SIGKILL cannot be caught
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def write_last_line(text: str) -> None:
    """Write to standard error why this process ends; on a full disk it may not fit, and must not change the exit code."""
    try:
        sys.stderr.write(visible(" ".join(text.split())) + "\n")
        sys.stderr.flush()
    except OSError:  # what the stream still holds would be written at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
