"""How a training is asked to stop: SIGTERM or SIGINT, a file STOP, or the lifeline (the process that started it has died).

Each means the same: finish the step, checkpoint, journal `end`, exit. A second SIGINT exits at once. A process that has not
come to the end of its step STOP_LIMIT_SECONDS after a signal hangs; the kernel ends it then.
"""

import os
import select
import signal
from pathlib import Path
from types import FrameType

STOP_LIMIT_SECONDS = 900


class StopRequest:
    """Asks `reason()` between steps."""

    def __init__(self, stop_file: Path, lifeline_fd: int | None) -> None:
        """Watch the given file and pipe."""
        self._stop_file = stop_file
        self._lifeline_fd = lifeline_fd
        self._signal: signal.Signals | None = None

    def install(self) -> None:
        """Catch SIGTERM and SIGINT; call it from the main thread."""
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
        # SIGALRM keeps its default action, which needs no Python code to run: it also ends a process that hangs in a kernel.
        signal.alarm(STOP_LIMIT_SECONDS)
        self._signal = signal.Signals(number)
