"""Slots of a machine: how many GPU processes of a worker's runs exist at the same time.

The work pool's limit counts flow runs; a training that is left to finish its step outlives its run. So each child holds a lock
on one of the slots' files, which the kernel frees when the child ends, however it ends.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_core.errors import DeviceError
from grpo_core.machine.gpus import slot_count
from grpo_core.machine.locks import holder_of, open_lock, try_lock

FOLDER_VARIABLE = "GRPO_SLOT_FOLDER"
"""Set, with the number of slots, by whoever starts the worker; without them nothing is limited."""


@contextlib.contextmanager
def held_slot(wait: Callable[[], None], say: Callable[[str], None] = lambda _: None) -> Iterator[tuple[int, ...]]:
    """Hold a slot while inside; yield the file descriptors that a child must inherit to hold it to its own end.

    Args:
        wait: called between two attempts while every slot is taken; what it raises ends the waiting.
        say: takes a line that names the holders, when the wait begins.

    Raises:
        DeviceError: the folder of the slots cannot be used.
    """
    count, folder = slot_count(), os.environ.get(FOLDER_VARIABLE)
    if not count or not folder:
        yield ()
        return
    has_reported = False
    while isinstance(found := _try_all(Path(folder), count), list):
        if not has_reported:
            say(f"waiting for one of {count} slot(s), held by {', '.join(found)}")
            has_reported = True
        wait()
    try:
        yield (found,)
    finally:
        os.close(found)


def _try_all(folder: Path, count: int) -> int | list[str]:
    """Return a descriptor that holds the first free slot, or who holds them all.

    Raises:
        DeviceError: the folder cannot be used.
    """
    holders = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for index in range(count):
            with open_lock(folder / f"slot-{index}") as file:
                if try_lock(file):
                    return os.dup(file.fileno())  # of the same opening: the lock stays when `file` is closed
                holders.append(holder_of(file))
    except OSError as error:
        raise DeviceError(
            f"slots {folder}: cannot be used ({error.filename or folder}: {error.strerror}); "
            f"name a folder of your own in {FOLDER_VARIABLE}"
        ) from error
    return holders
