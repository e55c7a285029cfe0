"""The NVIDIA GPUs of this machine, and locks that keep two runs of a user from sharing one without knowing of each other.

A GPU is known by its UUID, whatever CUDA_VISIBLE_DEVICES makes its number. Its holder locks a file of that name. The runs of a
stack with several slots (`grpo up --slots N`, GRPO_SLOTS) share the lock.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from grpo_core.errors import DeviceError, raised_as
from grpo_core.machine.locks import holder_of, open_lock, try_lock

T = TypeVar("T")

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


def gpu_memory() -> int | None:
    """Return the bytes of the smallest NVIDIA GPU, or part of one (MIG), that CUDA_VISIBLE_DEVICES lets this process see.

    None where there is none. A part that no variable names is taken for the whole.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = None if visible is None else [name.strip() for name in visible.split(",")]
    return _ask_driver(lambda: _visible_memory(seen), None)


def _visible_memory(seen: list[str] | None) -> int | None:
    if seen and seen[0].startswith("MIG-"):  # CUDA sees one part at most
        part = pynvml.nvmlDeviceGetHandleByUUID(seen[0])
        return int(pynvml.nvmlDeviceGetMemoryInfo(part).total)
    found = []
    for index, handle in enumerate(_handles()):
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        if seen is None or str(index) in seen or any(name and uuid.startswith(name) for name in seen):
            found.append(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
    return min(found, default=None)


def gpus() -> tuple[list[str], str | None]:
    """Return the names of the machine's NVIDIA GPUs and their driver's version."""
    nothing: tuple[list[str], str | None] = ([], None)
    return _ask_driver(_names_and_driver, nothing)


def _names_and_driver() -> tuple[list[str], str | None]:
    return [pynvml.nvmlDeviceGetName(handle) for handle in _handles()], pynvml.nvmlSystemGetDriverVersion()


def _handles() -> list[Any]:
    """Return the GPUs in the order of the PCI bus, as nvidia-smi counts them."""
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]


def _ask_driver(question: Callable[[], T], otherwise: T) -> T:
    """Return an answer of NVIDIA's driver, `otherwise` where there is none; torch would take memory of each GPU to ask."""
    try:
        pynvml.nvmlInit()
        try:
            return question()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return otherwise
