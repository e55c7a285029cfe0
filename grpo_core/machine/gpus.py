"""The NVIDIA GPUs of this machine, and what keeps the runs of a user from sharing them without knowing of each other.

A GPU is known by its UUID, whatever CUDA_VISIBLE_DEVICES makes its number. Its holder locks a file of that name. The runs of a
stack with several slots (`grpo up --slots N`, GRPO_SLOTS) share the lock: there may be more slots (`slots.py`) than GPUs.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pynvml

from grpo_core.errors import DeviceError, raised_as
from grpo_core.machine.locks import holder_of, open_lock, try_lock

SLOTS_VARIABLE = "GRPO_SLOTS"
"""How many processes of runs work at a time; set for the runs of a stack."""
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


def slot_count() -> int:
    """Return how many processes of runs this machine's stack has a place for; 0 outside of one."""
    return int(os.environ.get(SLOTS_VARIABLE) or 0)


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none where there are none."""
    given = os.environ.get(VISIBLE_VARIABLE)
    if given is not None:
        return tuple(part.strip() for part in given.split(",") if part.strip() and part.strip() != "-1")
    return tuple(str(index) for index in range(len(gpus()[0])))


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
                "CUDA_VISIBLE_DEVICES, or let runs share it on purpose with more slots than GPUs (`grpo up --slots N`)"
            )
        yield


def gpu_memory() -> int | None:
    """Return the bytes of the smallest NVIDIA GPU, or part of one (MIG), that CUDA_VISIBLE_DEVICES lets this process see.

    None where there is none. A part that no variable names is taken for the whole.
    """
    visible = os.environ.get(VISIBLE_VARIABLE)
    seen = None if visible is None else [name.strip() for name in visible.split(",")]
    found = []
    with contextlib.suppress(pynvml.NVMLError), _driver():
        if seen and seen[0].startswith("MIG-"):  # CUDA sees one part at most
            return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(seen[0])).total)
        for index in range(pynvml.nvmlDeviceGetCount()):  # in the order of the PCI bus, as nvidia-smi counts them
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if seen is None or str(index) in seen or pynvml.nvmlDeviceGetUUID(handle).startswith(tuple(filter(None, seen))):
                found.append(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
    return min(found, default=None)


def gpus() -> tuple[list[str], str | None]:
    """Return the names of the machine's NVIDIA GPUs and their driver's version."""
    names, version = list[str](), None
    with contextlib.suppress(pynvml.NVMLError), _driver():
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names, version = [pynvml.nvmlDeviceGetName(handle) for handle in handles], pynvml.nvmlSystemGetDriverVersion()
    return names, version


@contextlib.contextmanager
def _driver() -> Iterator[None]:
    """Ask NVIDIA's driver inside; torch would take memory of each GPU to ask."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()
