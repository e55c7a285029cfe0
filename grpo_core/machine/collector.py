"""Python's collector of reference cycles, kept away from modules: they are most of a process's objects, and no garbage.

Left alone it walks all of them again and again while they are imported, and once more when the process ends. Of a training
process that loads torch and transformers and does nothing else that is 1.8 of 6.0 s.
"""

import atexit
import gc
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
