"""Bounds on the calls of a user's functions, which stay in this process: they may hold state, or a GPU.

A reward function is called in the main thread, and only that thread's CPU time counts: others write checkpoints and compute
products. What sleeps, or waits for another process, meets the wall-clock backstop. Neither gives a verdict: the run stops by
name.

SIGPROF, from a timer of CPU time or of the clock, only asks its handler to look. The handler measures the call that
is under way and raises out of it if it exceeds a bound, so a signal that comes late does nothing. A function that does not come
back after that, in native code or because it catches everything, is ended with the process by faulthandler's thread, which
needs no lock of Python's.
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
_FRAME = re.compile(r'  File ".*", line \d+ in (.+)')


class Overrun(BaseException):
    """A call has exceeded its bound; the message says which. No Exception, which the function might handle."""


def call_bounded(function: Callable[[], T], cpu_seconds: float, what: str) -> T:
    """Return what a function returns; in another thread than the main one, which no signal reaches, the clock alone bounds it.

    Args:
        function: to be called.
        cpu_seconds: the bound.
        what: begins the message.

    Raises:
        Overrun: it was exceeded.
    """
    if threading.current_thread() is not threading.main_thread():
        return call_within(function, WALL_FACTOR * cpu_seconds, what)
    return _Call(cpu_seconds, what).run(function)


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


class _Call:
    """One call in the main thread."""

    def __init__(self, cpu_seconds: float, what: str) -> None:
        self._cpu_seconds, self._wall_seconds, self._what = cpu_seconds, WALL_FACTOR * cpu_seconds, what
        self._began, self._cpu_began = time.monotonic(), time.thread_time()
        self._is_under_way = self._was_interrupted = False

    def run(self, function: Callable[[], T]) -> T:
        def named() -> T:
            return function()

        named.__code__ = named.__code__.replace(co_name=self._what)  # of its frame, which faulthandler prints
        bounds = f"ended after {self._wall_seconds:g} s, or {self._cpu_seconds:g} s of CPU time"
        line = f"{WAITING}{self._what}: no result after {WAIT_SECONDS:.0f} s; {bounds}\n"
        main = threading.main_thread().ident or 0
        timers = (
            threading.Timer(WAIT_SECONDS, sys.stderr.write, [line]),
            threading.Timer(self._wall_seconds, signal.pthread_kill, [main, signal.SIGPROF]),
        )
        _end_process_after(self._wall_seconds + GRACE_SECONDS)
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, self._cpu_seconds)
        for timer in timers:
            timer.start()
        try:
            self._is_under_way = True
            return named()
        finally:
            self._is_under_way = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            for timer in timers:
                timer.cancel()
            signal.signal(signal.SIGPROF, signal.SIG_IGN)
            faulthandler.cancel_dump_traceback_later()

    def _look(self, _number: int, frame: FrameType | None) -> None:
        if not self._is_under_way:
            return
        remaining = self._cpu_seconds - (time.thread_time() - self._cpu_began)
        is_over = remaining <= 0 or time.monotonic() - self._began >= self._wall_seconds
        # What is raised in the frame of `run` would come before the function, or after it and skip the clearing up.
        if not is_over or frame is None or frame.f_code is _Call.run.__code__:
            signal.setitimer(signal.ITIMER_PROF, max(remaining, SHORTEST_SECONDS))  # the timer counts other threads, too
            return
        if not self._was_interrupted:
            self._was_interrupted = True
            _end_process_after(GRACE_SECONDS)
        signal.setitimer(signal.ITIMER_PROF, self._cpu_seconds)  # the function may catch what is raised
        clock = f"no result after {self._wall_seconds:g} s of the clock, ten times its bound in CPU time"
        reason = clock if remaining > 0 else f"more than {self._cpu_seconds:g} s of CPU time"
        raise Overrun(f"{self._what}: {reason} (rewards[].cpu_seconds {self._cpu_seconds:g}); it hangs or needs more")


def _end_process_after(seconds: float) -> None:
    """Print where every thread is and exit, unless that is cancelled or put off; also while Python's lock is held."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=STANDARD_ERROR)


def call_that_ended_process(log: Sequence[str]) -> str | None:
    """Return which call the process of a log was ended in; None if its last lines are not what is printed then."""
    for line in reversed(log):
        frame = _FRAME.fullmatch(line)
        if frame is None or " " in frame[1]:  # no name of Python's has a blank
            return frame and frame[1]
    return None
