"""A victim's side of the pipe: it says which phase it enters and leaves, and waits where it is to be killed."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.torture.aims import Aim, Moment
from tests.torture.phases import Event, Phase

PAUSE_SECONDS = 20.0
"""The harness kills within milliseconds of the announcement; a busy machine may take longer."""


class Announcer:
    """Writes events to a pipe, unbuffered: what is in it was said before the process died."""

    def __init__(self, descriptor: int, aim: Aim | None) -> None:
        """Announce into `descriptor`; wait for the kill of `aim`, once."""
        self._descriptor = descriptor
        self._aim = None if aim is None or aim.moment == "timed" else aim
        self._of_thread = threading.local()
        self._points = 0

    @property
    def _inside(self) -> list[tuple[Phase, int]]:
        """The phases of this thread, the innermost last: checkpoints are written by a thread beside the training."""
        if not hasattr(self._of_thread, "inside"):
            self._of_thread.inside = []
        inside: list[tuple[Phase, int]] = self._of_thread.inside
        return inside

    @contextmanager
    def phase(self, phase: Phase, step: int, detail: str = "") -> Iterator[None]:
        """Announce that a phase is entered and, unless it fails, left."""
        self._inside.append((phase, step))
        self._say("enter", detail)
        if self._is_at("before"):
            self._pause("at its begin")
        try:
            yield
            # Where the phase had fewer points than the aim counted, its end is the nearest.
            if self._is_at("after", "middle", "torn"):
                self._pause("at its end")
            self._say("leave", detail)
        finally:
            self._inside.pop()

    def is_in(self, phase: Phase) -> bool:
        """Tell whether `phase` is the innermost one."""
        return bool(self._inside) and self._inside[-1][0] is phase

    @property
    def step(self) -> int:
        """The step of the innermost phase."""
        return self._inside[-1][1]

    def point(self, moment: Moment, detail: str) -> None:
        """Be at one of the points of the innermost phase."""
        if self.takes(moment):
            self._pause(detail)

    def takes(self, moment: Moment) -> bool:
        """Count a point of the innermost phase and return whether it is the one to wait at."""
        if not self._is_at(moment):
            return False
        assert self._aim is not None
        self._points += 1
        return self._points == self._aim.nth

    def tears(self, length: int) -> int | None:
        """Return how many of `length` bytes are to be written before the kill, None where it is not in this phase."""
        if not self._is_at("torn"):
            return None
        assert self._aim is not None
        return 1 + self._aim.nth % (length - 1)

    def wait_for_the_kill(self, detail: str) -> None:
        """Wait here, whatever was counted."""
        self._pause(detail)

    def _is_at(self, *moments: Moment) -> bool:
        aim = self._aim
        return aim is not None and aim.moment in moments and self._inside[-1:] == [(aim.phase, aim.step)]

    def _pause(self, detail: str) -> None:
        self._aim = None
        self._say("pause", detail)
        time.sleep(PAUSE_SECONDS)

    def _say(self, what: str, detail: str) -> None:
        phase, step = self._inside[-1]
        thread = "main" if threading.current_thread() is threading.main_thread() else "writer"
        os.write(self._descriptor, Event(what=what, phase=phase, step=step, detail=detail, thread=thread).encode())
