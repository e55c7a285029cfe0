"""How a training is asked to stop: SIGTERM or SIGINT, a file STOP, or the lifeline (the process that started it has died).

Each means the same: finish the step, checkpoint, journal `end`, exit. A second SIGINT ends the process at once, also in native
code; what was journalled stays. A process that has not come to its end STOP_LIMIT_SECONDS later hangs, and is killed.
"""

import math
import os
import select
import signal
import threading
import time
from pathlib import Path
from types import FrameType

STOP_LIMIT_SECONDS = 1800.0
AT_ONCE = b"interrupted twice: ended at once, without a checkpoint; started again, it resumes from the newest one\n"


class StopRequest:
    """Asks `reason()` between steps."""

    def __init__(self, stop_file: Path, lifeline_fd: int | None) -> None:
        """Watch the given file and pipe."""
        self._stop_file = stop_file
        self._lifeline_fd = lifeline_fd
        self._signal: signal.Signals | None = None
        self._finished = threading.Event()
        self._wake: int | None = None

    def install(self) -> None:
        """Catch SIGTERM and SIGINT, and begin to watch for a second one or a hang; call it from the main thread."""
        woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        # Python's own handler waits until the main thread is back from native code; this byte is written at once.
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(woken,), name="stop-watch", daemon=True).start()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def reason(self) -> str | None:
        """Return why the training should stop now, or None."""
        if self._signal is not None:
            return self._signal.name
        if self._stop_file.exists():
            return f"STOP: {self._stop_file.read_text().strip() or 'asked for by the file'}"
        return "lifeline: the process that started the training has died" if self._starter_has_died() else None

    @property
    def is_urgent(self) -> bool:
        """Whether nobody waits for more than the end: a signal has come, or the process that started the training has died."""
        return self._signal is not None or self._starter_has_died()

    def close(self) -> None:
        """Stop watching: the training has come to its end."""
        self._finished.set()
        if self._wake is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._wake)
            self._wake = None

    def _watch(self, woken: int) -> None:
        """Count the signals: the second SIGINT ends the process; a first one, or the end of the lifeline, begins the limit."""
        sources = [woken, *([] if self._lifeline_fd is None else [self._lifeline_fd])]
        interrupts, deadline = 0, math.inf
        while True:
            left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select(sources, [], [], left)
            if self._finished.is_set():
                break
            if not readable:
                os.kill(os.getpid(), signal.SIGKILL)
            numbers = os.read(woken, select.PIPE_BUF) if woken in readable else b""
            interrupts += numbers.count(signal.SIGINT)
            if interrupts > 1:
                # From this thread: an exception in the main one would wait until it is back from native code. Every record
                # was flushed and fsynced when it counted; one that is just being written is torn, and dropped by its reader.
                os.write(2, AT_ONCE)
                os._exit(128 + signal.SIGINT)
            # Other signals come too: a reward function may set itself an alarm.
            if signal.SIGINT in numbers or signal.SIGTERM in numbers or woken not in readable:
                deadline = min(deadline, time.monotonic() + STOP_LIMIT_SECONDS)
            sources = [
                source for source in sources if source == woken or source not in readable
            ]  # the lifeline stays at its end
        os.close(woken)

    def _starter_has_died(self) -> bool:
        lifeline = self._lifeline_fd
        return lifeline is not None and bool(select.select([lifeline], [], [], 0)[0]) and os.read(lifeline, 1) == b""

    @property
    def exit_code(self) -> int:
        """128 + signal number after a signal, else 0."""
        return 0 if self._signal is None else 128 + self._signal

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = self._signal or signal.Signals(number)
