"""Locks that keep two runs of a user from sharing a GPU without knowing of each other.

A GPU is known by its UUID, whatever CUDA_VISIBLE_DEVICES makes its number. Its holder locks a file of that name. The runs of a
stack with several slots (`grpo up --slots N`, GRPO_SLOTS) share the lock.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grpo_core.errors import DeviceError, raised_as
from grpo_core.machine.locks import holder_of, open_lock, try_lock

SLOTS_VARIABLE = "GRPO_SLOTS"
"""How many runs take place at a time; set for the runs of a stack."""


def slot_count() -> int:
    """Return how many runs of this machine's stack take place at a time; 0 outside of one.

    Raises:
        DeviceError: the variable holds something else.
    """
    value = os.environ.get(SLOTS_VARIABLE) or "0"
    if not value.isdecimal():
        raise DeviceError(f"{SLOTS_VARIABLE}={value}: is no number of runs; unset it, or let `grpo up --slots N` set it")
    return int(value)


@contextlib.contextmanager
def held_gpu(uuid: str, name: str) -> Iterator[None]:
    """Hold a GPU for this process while inside.

    Args:
        uuid: of the GPU.
        name: of its type, for the message.

    Raises:
        DeviceError: another run holds it, or the folder of the locks cannot be used.
    """
    folder = Path(tempfile.gettempdir()) / f"grpo-gpu-locks-{os.geteuid()}"
    with raised_as(DeviceError, f"GPU locks {folder}: cannot be used ({{cause}}); set TMPDIR to a folder of your own", OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = open_lock(folder / uuid)
    with lock:
        if not try_lock(lock, fcntl.LOCK_SH if slot_count() > 1 else fcntl.LOCK_EX):
            raise DeviceError(
                f"GPU {name} ({uuid}): in use by {holder_of(lock)}; wait for it or end it, choose another GPU with "
                "CUDA_VISIBLE_DEVICES, or let runs share it on purpose with `grpo up --slots N`"
            )
        yield
