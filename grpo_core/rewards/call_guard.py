"""Bounds on the calls of a user's functions, which stay in this process: they may hold state, or a GPU.

A reward function is called in the main thread, and only that thread's CPU time counts: others write checkpoints and compute
products. What sleeps, or waits for another process, meets the wall-clock backstop. Neither gives a verdict: the run stops by
name.

SIGPROF, from a timer or from a thread that watches the clock, only asks its handler to look. The handler measures the call that
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
LOOK_SECONDS = 1.0
"""Between two looks, and between two interrupts: a function may have caught what was raised."""
WAIT_SECONDS = 30.0
"""After so long a call is named, and again whenever that time has doubled."""
WAITING = "waiting for "
"""Begins the line that names it."""
GRACE_SECONDS = 10.0
"""From the first interrupt to the end of the process."""
STANDARD_ERROR = 2


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

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome.done():
        raise Overrun(f"{what}: no result after {seconds:g} s of the clock")
    return outcome.result()


class _Call:
    """One call in the main thread."""

    def __init__(self, cpu_seconds: float, what: str) -> None:
        self._cpu_seconds, self._wall_seconds, self._what = cpu_seconds, WALL_FACTOR * cpu_seconds, what
        self._is_under_way = self._was_interrupted = False
        self._ended = threading.Event()
        self._began, self._cpu_began = time.monotonic(), time.thread_time()

    def run(self, function: Callable[[], T]) -> T:
        def named() -> T:
            return function()

        named.__code__ = named.__code__.replace(co_name=self._what)  # of its frame, which faulthandler prints
        watch = threading.Thread(target=self._watch_clock, daemon=True)
        watch.start()
        _end_process_after(self._wall_seconds + GRACE_SECONDS)
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, self._cpu_seconds, min(LOOK_SECONDS, self._cpu_seconds))
        try:
            self._is_under_way = True
            return named()
        finally:
            self._is_under_way = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._ended.set()
            watch.join()
            signal.signal(signal.SIGPROF, signal.SIG_IGN)
            faulthandler.cancel_dump_traceback_later()

    def _look(self, _number: int, frame: FrameType | None) -> None:
        # What is raised in the frame of `run` would come before the function, or after it and skip the clearing up.
        if not self._is_under_way or frame is None or frame.f_code is _Call.run.__code__:
            return
        if time.thread_time() - self._cpu_began >= self._cpu_seconds:
            reason = f"more than {self._cpu_seconds:g} s of CPU time"
        elif time.monotonic() - self._began >= self._wall_seconds:
            reason = f"no result after {self._wall_seconds:g} s of the clock, ten times its bound in CPU time"
        else:
            return
        if not self._was_interrupted:
            self._was_interrupted = True
            _end_process_after(GRACE_SECONDS)
        limit = f"rewards[].cpu_seconds {self._cpu_seconds:g}"
        raise Overrun(f"{self._what}: {reason} ({limit}); the function hangs or needs more")

    def _watch_clock(self) -> None:
        """Name the call when it takes long, and ask for a look when it has taken too long."""
        named_at = WAIT_SECONDS
        bounds = f"ended after {self._wall_seconds:g} s, or {self._cpu_seconds:g} s of CPU time"
        while not self._ended.wait(min(LOOK_SECONDS, self._wall_seconds)):
            seconds = time.monotonic() - self._began
            if seconds >= named_at:
                sys.stderr.write(f"{WAITING}{self._what}: no result after {named_at:.0f} s; {bounds}\n")
                sys.stderr.flush()
                named_at *= 2
            if seconds >= self._wall_seconds:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPROF)


def _end_process_after(seconds: float) -> None:
    """Print where every thread is and exit, unless that is cancelled or put off; also while Python's lock is held."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=STANDARD_ERROR)


_NAMED_FRAME = re.compile(r'  File ".*", line \d+ in (\S+ .+)')
"""No function of Python's has a blank in its name."""


def call_that_ended_process(log: Sequence[str]) -> str | None:
    """Return which call the process of a log was ended in; None if its last lines are not what is printed then."""
    for line in reversed(log):
        if found := _NAMED_FRAME.fullmatch(line):
            return found[1]
        if not line.startswith('  File "'):
            return None
    return None
