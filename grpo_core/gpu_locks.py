"""Locks that keep two processes of this machine from sharing a GPU without knowing of each other.

A GPU is known by its UUID, whatever CUDA_VISIBLE_DEVICES makes its number. Its holders lock files `<uuid>-0`, `<uuid>-1`, ...
in a folder of the machine and write into them who they are; the kernel frees a lock however its holder ends. There is one
holder, except where every holder wants to share: the runs of a stack with several slots (`grpo up --slots N`, GRPO_SLOTS).
Containers have folders of their own: mount one folder into all that may see the same GPU, and name it in GRPO_GPU_LOCKS.
"""

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from grpo_core.errors import DeviceError
from grpo_core.locks import holder_of, try_lock

FOLDER_VARIABLE, SLOTS_VARIABLE = "GRPO_GPU_LOCKS", "GRPO_SLOTS"
"""Environment variables: the folder of the locks; how many runs take place at a time (set for the runs of a stack)."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU of this machine."""

    uuid: str
    name: str


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
def held_gpu(gpu: Gpu, run_path: Path) -> Iterator[None]:
    """Hold a GPU for this process while inside.

    Raises:
        DeviceError: it is held already, or the folder of the locks cannot be used.
    """
    folder = Path(os.environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir()) / "grpo-gpu-locks")
    share = max(1, slot_count())
    facts = {"pid": os.getpid(), "run_dir": str(run_path.resolve()), "share": share}
    try:
        _make_folder(folder)
        with _open(folder / gpu.uuid) as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # held for an instant: between looking who is there and joining them
            lock = _join(gpu, folder, facts)
    except OSError as error:
        raise DeviceError(
            f"GPU locks {folder}: cannot be used ({error.strerror}); "
            f"name a folder that every user of this machine can write to in {FOLDER_VARIABLE}"
        ) from error
    with lock:
        yield


def _join(gpu: Gpu, folder: Path, facts: dict[str, Any]) -> IO[bytes]:
    """Lock the first free file of a GPU if its holders and this process all share it with that many.

    Raises:
        DeviceError: they do not.
    """
    free: IO[bytes] | None = None
    holders: list[tuple[str, dict[str, Any]]] = []
    for file in (_open(path) for path in _files(gpu, folder, facts["share"])):
        if not try_lock(file):
            holders.append((holder_of(file), _read(file)))
            file.close()
        elif free is None:
            free = file
        else:
            file.close()
    if free is not None and len(holders) < min([facts["share"], *(int(other.get("share", 1)) for _, other in holders)]):
        free.truncate(0)
        free.write(json.dumps(facts).encode())
        free.flush()
        return free
    if free is not None:
        free.close()
    raise DeviceError(_refusal(gpu, holders))


def _files(gpu: Gpu, folder: Path, share: int) -> list[Path]:
    """Return the lock files of a GPU: those that there are, and as many as this process needs."""
    there = {path for path in folder.glob(f"{gpu.uuid}-*") if path.name.removeprefix(f"{gpu.uuid}-").isdecimal()}
    return sorted({*there, *(folder / f"{gpu.uuid}-{index}" for index in range(share))})


def _refusal(gpu: Gpu, holders: list[tuple[str, dict[str, Any]]]) -> str:
    whose = [f"process {facts['pid']} ({facts['run_dir']})" if "pid" in facts else holder for holder, facts in holders]
    return (
        f"GPU {gpu.name} ({gpu.uuid}): in use by {', '.join(whose)}; wait for it or end it, "
        f"choose another GPU with CUDA_VISIBLE_DEVICES, or let runs share it on purpose with `grpo up --slots N`"
    )


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777)  # as /tmp: every user makes files, nobody removes another one's


def _open(path: Path) -> IO[bytes]:
    try:
        # Without O_CREAT: in such a folder Linux refuses it for a file of another user.
        return os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b")
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, 0o666)
        return os.fdopen(descriptor, "r+b")


def _read(file: IO[bytes]) -> dict[str, Any]:
    """Return what a holder wrote, nothing where it cannot be read."""
    try:
        facts = json.loads(file.read())
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) and {"pid", "run_dir", "share"} <= facts.keys() else {}
