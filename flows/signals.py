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


class _Requests:
    """Raises KeyboardInterrupt in the main thread once for each request to end."""

    def __init__(self) -> None:
        self.first: int | None = None
        self._since = 0.0
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # further output goes nowhere: writing to a terminal that is gone is an error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in self._terminals:
                os.dup2(nowhere, stream)
        if self.first is None:
            self.first, self._since = number, time.monotonic()
        elif time.monotonic() - self._since < SAME_REQUEST_SECONDS and not number == self.first == signal.SIGINT:
            return
        raise KeyboardInterrupt


_installed: _Requests | None = None


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C while a command runs inside; its exit code then shows which one came."""
    global _installed  # noqa: PLW0603  (signal handlers are the process's)
    _installed = requests = _Requests()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # one that is ignored (nohup, a script's background) stays so
            signal.signal(number, requests.handle)
    try:
        yield
    except SystemExit as error:
        # 130 comes after any KeyboardInterrupt.
        sys.exit(128 + requests.first if requests.first and error.code == 128 + signal.SIGINT else error.code)


def ends_when_asked(work: Callable[P, T]) -> Callable[P, T]:
    """Return a flow's work such that it ends as signals to the command ask, and in Cancelled if its flow run is cancelled.

    In Prefect's own handling of SIGTERM, each of several signals is a request. In a worker's process, a notebook or a thread
    nothing is changed.
    """
    from prefect.states import Cancelled  # here: the command imports this file, and Prefect takes seconds

    from tasks.process.prefect_outage import RunCancelledError

    @wraps(work)
    def ended(*args: P.args, **kwargs: P.kwargs) -> T:
        before = signal.getsignal(signal.SIGTERM)
        is_main = threading.current_thread() is threading.main_thread()
        requests = _installed if is_main and before is not signal.SIG_IGN else None
        try:
            if requests is not None:
                signal.signal(signal.SIGTERM, requests.handle)
            return work(*args, **kwargs)
        except RunCancelledError as error:
            return cast("T", Cancelled(message=str(error)))  # a flow that returns a state ends in it
        finally:
            if requests is not None:
                signal.signal(signal.SIGTERM, before)

    return ended
