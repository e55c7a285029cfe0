"""How a command at a terminal or in a batch job is asked to end: Ctrl-C, SIGTERM (`timeout`, Slurm), SIGHUP (terminal closed).

Each means the same: finish the step, checkpoint, report, exit with 128 + the signal's number. A second one ends the training at
once. A worker's flow processes are Prefect's to end, and nothing of this happens there.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

SAME_REQUEST_SECONDS = 2.0
"""`timeout` sends SIGTERM to its command and then to the group, Slurm to every process of a step: that is one request."""
DEFAULT_HANDLERS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


class _Requests:
    """Raises KeyboardInterrupt in the main thread once for each request to end."""

    def __init__(self) -> None:
        self._first: signal.Signals | None = None
        self._since = 0.0
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def install(self) -> None:
        for number, default in DEFAULT_HANDLERS.items():
            if signal.getsignal(number) == default:  # one that is ignored (nohup, a script's background) stays ignored
                signal.signal(number, self.handle)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGHUP:  # further output goes nowhere: writing to a terminal that is gone is an error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in self._terminals:
                os.dup2(nowhere, stream)
            os.close(nowhere)
        if self._first is None:
            self._first, self._since = signal.Signals(number), now
        elif now - self._since < SAME_REQUEST_SECONDS and not number == self._first == signal.SIGINT:
            return
        raise KeyboardInterrupt

    def exit_code(self, code: int) -> int:
        """Return the exit code of a command that ends with `code`, which is 130 after any KeyboardInterrupt."""
        return 128 + self._first if self._first is not None and code == 128 + signal.SIGINT else code


_installed: _Requests | None = None


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C while a command runs inside; its exit code then shows which one came."""
    global _installed  # noqa: PLW0603  (signal handlers are the process's)
    _installed = _Requests()
    _installed.install()
    try:
        yield
    except SystemExit as error:
        sys.exit(_installed.exit_code(error.code) if isinstance(error.code, int) else error.code)


@contextmanager
def signals_of_the_command() -> Iterator[None]:
    """Let the command's own handling of SIGTERM count inside a flow; in Prefect's, each of several signals is a request.

    In a worker's process, a notebook or a thread nothing is changed.
    """
    if _installed is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, _installed.handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ends_when_asked(work: Callable[P, T]) -> Callable[P, T]:
    """Return a flow's work such that it ends as signals to the command ask, and in Cancelled if its flow run is cancelled."""
    from prefect.states import Cancelled  # here: the command imports this file, and Prefect takes seconds

    from tasks.process.prefect_outage import RunCancelledError

    @wraps(work)
    def ended(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with signals_of_the_command():
                return work(*args, **kwargs)
        except RunCancelledError as error:
            return cast("T", Cancelled(message=str(error)))  # a flow that returns a state ends in it

    return ended
