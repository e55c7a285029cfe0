"""This process itself: its lifeline to its parent, imports without the collector of cycles, output whose reader may leave."""

import atexit
import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Import what is inside without looking for garbage; what is there afterwards is never looked at again.

    For imports only: a cycle that is dropped inside stays in memory. The end of the process is faster, too: destructors run as
    ever, and the system frees the rest at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
        atexit.unregister(gc.freeze)  # once, however often this is used
        atexit.register(gc.freeze)


@contextlib.contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """Write inside to standard output or error; once nobody reads one of them, what is written to it goes nowhere.

    A run does not fail because nobody looks at its lines any more, as it does not when its terminal is closed under `nohup`.
    """
    try:
        yield
    except BrokenPipeError:
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            try:
                stream.flush()
            except BrokenPipeError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)


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
