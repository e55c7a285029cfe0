"""Bounds on the calls of a user's functions, which stay in this process: they may hold state, or a GPU.

A reward function is called in the main thread, and only that thread's CPU time counts: others write checkpoints and compute
products. SIGPROF, from a timer of CPU time, only asks its handler to look, which raises out of a call that has exceeded its
bound. A call that does not end at that, in native code or because it catches everything, or that sleeps, is ended with the
process by faulthandler's thread, which needs no lock of Python's.
"""

import faulthandler
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
WALL_FACTOR = 10
"""The wall-clock backstop, in bounds."""
SHORTEST_SECONDS = 0.01
WAIT_SECONDS = 30.0
"""After so long a call is named."""
WAITING = "waiting for "
"""Begins the line that names it."""
GRACE_SECONDS = 10.0
"""From the interrupt, which a function may have caught, to the end of the process."""
STANDARD_ERROR = 2
FRAME = re.compile(r'  File ".*", line \d+ in (.+)')


class Overrun(BaseException):
    """A call has exceeded its bound; the message says which. No Exception, which the function might handle."""


def call_bounded(function: Callable[[], T], cpu_seconds: float, what: str) -> T:
    """Return what a function returns; call this in the main thread.

    Args:
        function: to be called.
        cpu_seconds: the bound.
        what: begins the message.

    Raises:
        Overrun: it was exceeded.
    """
    began, bound = time.thread_time(), f"{cpu_seconds:g} s of CPU time"

    def named() -> T:
        return function()

    def look(_number: int, _frame: FrameType | None) -> None:
        remaining = cpu_seconds - (time.thread_time() - began)
        if remaining > 0:  # the timer counts other threads, too
            signal.setitimer(signal.ITIMER_PROF, max(remaining, SHORTEST_SECONDS))
            return
        _end_process_after(GRACE_SECONDS)
        raise Overrun(f"{what}: more than {bound} (rewards[].cpu_seconds {cpu_seconds:g}); it hangs or needs more")

    named.__code__ = named.__code__.replace(co_name=what)  # of its frame, which faulthandler prints
    line = f"{WAITING}{what}: no result after {WAIT_SECONDS:.0f} s; ended after {WALL_FACTOR * cpu_seconds:g} s, or {bound}\n"
    waiting = threading.Timer(WAIT_SECONDS, sys.stderr.write, [line])
    waiting.start()
    _end_process_after(WALL_FACTOR * cpu_seconds)
    signal.signal(signal.SIGPROF, look)
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
            return named()
        finally:  # a signal that comes in here raises once, and what is outside is done all the same
            signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        waiting.cancel()
        faulthandler.cancel_dump_traceback_later()


def _end_process_after(seconds: float) -> None:
    """Print where every thread is and exit, unless that is cancelled or put off; also while Python's lock is held."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=STANDARD_ERROR)


def call_within(function: Callable[[], T], seconds: float, what: str) -> T:
    """Return what a function returns in a thread of its own, which is left alone if it takes longer.

    Raises:
        Overrun: it does.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001  (raised again where it is waited for)
            outcome.set_exception(error)

    threading.Thread(target=run, name=what, daemon=True).start()
    try:
        outcome.exception(seconds)
    except TimeoutError:
        raise Overrun(f"{what}: no result after {seconds:g} s of the clock") from None
    return outcome.result()


def call_that_ended_process(log: Sequence[str]) -> str | None:
    """Return which call the process of a log was ended in; None if its last lines are not what is printed then."""
    for line in reversed(log):
        frame = FRAME.fullmatch(line)
        if frame is None or " " in frame[1]:  # no name of Python's has a blank
            return frame and frame[1]
    return None
