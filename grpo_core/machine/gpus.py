"""The NVIDIA GPUs of this machine, and what keeps the runs of a user from sharing them without knowing of each other.

A GPU is known by its UUID, whatever CUDA_VISIBLE_DEVICES makes its number. Its holder locks a file of that name. The runs of a
stack with several slots (`grpo up --slots N`, GRPO_SLOTS) share the lock. The slots themselves are locks, too: the work pool's
limit counts flow runs, and a training that is left to finish its step outlives its run, so each child holds one.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml

from grpo_core.errors import DeviceError, raised_as
from grpo_core.machine.locks import holder_of, open_lock, try_lock

SLOTS_VARIABLE = "GRPO_SLOTS"
"""How many runs take place at a time; set for the runs of a stack."""
FOLDER_VARIABLE = "GRPO_SLOT_FOLDER"
"""Where the slots' locks are; set, with their number, by whoever starts the worker. Without them nothing is limited."""


def slot_count() -> int:
    """Return how many runs of this machine's stack take place at a time; 0 outside of one."""
    return int(os.environ.get(SLOTS_VARIABLE) or 0)


@contextlib.contextmanager
def held_slot(wait: Callable[[], None], say: Callable[[str], None] = lambda _: None) -> Iterator[tuple[int, ...]]:
    """Hold a slot while inside; yield the file descriptors that a child must inherit to hold it to its own end.

    Args:
        wait: called between two attempts while every slot is taken; what it raises ends the waiting.
        say: takes a line that names the holders, when the wait begins.
    """
    count, folder = slot_count(), os.environ.get(FOLDER_VARIABLE)
    if not count or not folder:
        yield ()
        return
    with contextlib.ExitStack() as opened:
        Path(folder).mkdir(parents=True, exist_ok=True)
        slots = [opened.enter_context(open_lock(Path(folder) / f"slot-{index}")) for index in range(count)]
        found = next(filter(try_lock, slots), None)
        if found is None:
            say(f"waiting for one of {count} slot(s), held by {', '.join(map(holder_of, slots))}")
        while found is None:
            wait()
            found = next(filter(try_lock, slots), None)
        yield (found.fileno(),)


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none where there are none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
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
                "CUDA_VISIBLE_DEVICES, or let runs share it on purpose with `grpo up --slots N`"
            )
        yield


def gpu_memory() -> int | None:
    """Return the bytes of the smallest NVIDIA GPU, or part of one (MIG), that CUDA_VISIBLE_DEVICES lets this process see.

    None where there is none. A part that no variable names is taken for the whole.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
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
