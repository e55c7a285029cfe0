"""The lifeline of a child process: an inherited pipe whose other end is held by the process that started it.

End-of-file on it means that this process has died, however it died. A training looks at it between steps
(`training/ending.py`); a process with nothing to save ends at once.
"""

import os
import threading

LIFELINE_VARIABLE = "GRPO_LIFELINE_FD"
"""Environment variable that holds the number of the inherited file descriptor."""


def lifeline_from_environment() -> int | None:
    """Return the lifeline's file descriptor, None where the process was started by hand."""
    value = os.environ.get(LIFELINE_VARIABLE)
    return int(value) if value else None


def exit_with_lifeline() -> None:
    """From now on, end this process at once when the one that started it has died."""
    descriptor = lifeline_from_environment()
    if descriptor is not None:
        threading.Thread(target=_exit_at_end_of_file, args=(descriptor,), daemon=True).start()


def _exit_at_end_of_file(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os._exit(1)
