"""A bound on the calls of a user's reward function, which stay in this process: it may hold state, or a GPU.

Only the calling thread's CPU time counts: others write checkpoints and compute products. What sleeps, or waits for another
process, meets the wall-clock backstop. Neither gives a verdict: the run stops by name.

Nothing in this process can watch a call that holds Python's lock, so another process does (`watch_call.py`). It sends SIGPROF,
whose handler raises out of the function. A function that does not come back after that, in native code or because it catches
everything, is killed with the process.
"""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
WALL_FACTOR = 10
"""The wall-clock backstop, in bounds."""
WATCH = Path(__file__).with_name("watch_call.py")


class Overrun(BaseException):
    """A call has exceeded its bound; the message says which. No Exception, which the function might handle."""


class CallGuard:
    """Bounds calls, one at a time; its process is started by the first one and ends with this process."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[str] | None = None
        self._is_inside = False

    def call(self, function: Callable[[], T], cpu_seconds: float, what: str) -> T:
        """Return what a function returns; in another thread than the main one, which no signal reaches, without a bound.

        Args:
            function: to be called.
            cpu_seconds: the bound.
            what: begins the message.

        Raises:
            Overrun: it was exceeded.
        """
        if threading.current_thread() is not threading.main_thread():
            return function()
        process = self._start()
        before = signal.signal(signal.SIGPROF, self._on_signal)
        wall_seconds = WALL_FACTOR * cpu_seconds
        limits = {"cpu_seconds": cpu_seconds, "wall_seconds": wall_seconds, "what": what}
        try:
            _tell(process, {"thread": threading.get_native_id(), **limits})
            try:
                self._is_inside = True
                return function()
            finally:
                self._is_inside = False
                _tell(process, {})
        finally:
            signal.signal(signal.SIGPROF, before or signal.SIG_DFL)

    def _start(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-I", "-S", str(WATCH), str(os.getpid())]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._process

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_inside and self._process is not None and self._process.stdout is not None:
            raise Overrun(self._process.stdout.readline().strip())

    def close(self) -> None:
        """End its process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


CALLS = CallGuard()
"""Of a process that trains or evaluates."""
atexit.register(CALLS.close)


def _tell(process: "subprocess.Popen[str]", message: dict[str, object]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the watching process was killed: the call is without a bound
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
