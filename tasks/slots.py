"""Slots of a machine: how many GPU processes of a worker's runs exist at the same time.

The work pool's limit counts flow runs; a training that is left to finish its step outlives its run. So each child holds a lock
on one of the slots' files, which the kernel frees when the child ends, however it ends.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_core.gpu_locks import slot_count

FOLDER_VARIABLE = "GRPO_SLOT_FOLDER"
"""Set, with the number of slots, by whoever starts the worker; without them nothing is limited."""


@contextlib.contextmanager
def held_slot(wait: Callable[[], None]) -> Iterator[tuple[int, ...]]:
    """Hold a slot while inside; yield the file descriptors that a child must inherit to hold it to its own end.

    Args:
        wait: called between two attempts while every slot is taken.
    """
    count, folder = slot_count(), os.environ.get(FOLDER_VARIABLE)
    if not count or not folder:
        yield ()
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    files = [Path(folder) / f"slot-{index}" for index in range(count)]
    while (descriptor := _try_all(files)) is None:
        wait()
    try:
        yield (descriptor,)
    finally:
        os.close(descriptor)


def _try_all(files: list[Path]) -> int | None:
    for file in files:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
        else:
            return descriptor
    return None
