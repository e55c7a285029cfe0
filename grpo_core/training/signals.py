"""How a training is asked to stop: SIGTERM or SIGINT, a file STOP, or the lifeline (the process that started it has died).

Each means the same: finish the step, checkpoint, journal `end`, exit. A second SIGINT exits at once. A process that has not
come to the end of its step STOP_LIMIT_SECONDS later hangs, and ends itself.
"""

import os
import select
import signal
import threading
from pathlib import Path
from types import FrameType

STOP_LIMIT_SECONDS = 1800.0


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
        """Catch SIGTERM and SIGINT, and begin to watch for a hang; call it from the main thread."""
        woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        # Python's own handler waits until the main thread is back from native code; this byte is written at once.
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        threading.Thread(target=self._end_a_hang, args=(woken,), name="stop-limit", daemon=True).start()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def reason(self) -> str | None:
        """Return why the training should stop now, or None."""
        if self._signal is not None:
            return self._signal.name
        if self._stop_file.exists():
            return f"STOP: {self._stop_file.read_text().strip() or 'asked for by the file'}"
        if self._lifeline_ended():
            return "lifeline: the process that started the training has died"
        return None

    def close(self) -> None:
        """Stop watching for a hang: the training has come to its end."""
        self._finished.set()
        if self._wake is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._wake)
            self._wake = None

    def _end_a_hang(self, woken: int) -> None:
        """Wait for the first signal or the end of the lifeline, then for the limit; whoever still runs then is killed."""
        select.select([woken, *([] if self._lifeline_fd is None else [self._lifeline_fd])], [], [])
        if not self._finished.wait(STOP_LIMIT_SECONDS):
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(woken)

    @property
    def exit_code(self) -> int:
        """128 + signal number after a signal, else 0."""
        return 0 if self._signal is None else 128 + self._signal

    def _lifeline_ended(self) -> bool:
        if self._lifeline_fd is None:
            return False
        readable, _, _ = select.select([self._lifeline_fd], [], [], 0)
        return bool(readable) and os.read(self._lifeline_fd, 1) == b""

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number)
