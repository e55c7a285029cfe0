"""This process itself: imports without the collector of reference cycles, output whose reader may leave."""

import atexit
import contextlib
import gc
import os
import sys
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
