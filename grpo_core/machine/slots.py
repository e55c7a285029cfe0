"""Slots of a machine: how many GPU processes of a worker's runs exist at the same time.

The work pool's limit counts flow runs; a training that is left to finish its step outlives its run. So each child holds a lock
on one of the slots' files, which the kernel frees when the child ends, however it ends.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_core.errors import DeviceError, raised_as
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
    with contextlib.ExitStack() as opened:
        with raised_as(DeviceError, f"{FOLDER_VARIABLE}={folder}: the slots cannot be used ({{cause}})", OSError):
            Path(folder).mkdir(parents=True, exist_ok=True)
            slots = [opened.enter_context(open_lock(Path(folder) / f"slot-{index}")) for index in range(count)]
        has_reported = False
        while (found := next(filter(try_lock, slots), None)) is None:
            if not has_reported:
                say(f"waiting for one of {count} slot(s), held by {', '.join(map(holder_of, slots))}")
                has_reported = True
            wait()
        yield (found.fileno(),)
