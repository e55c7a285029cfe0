"""Locks that keep two processes of this machine from sharing a GPU without knowing of each other, whoever their users are.

A GPU is known by its UUID, whatever CUDA_VISIBLE_DEVICES makes its number. Its holder locks a file `<uuid>-<user id>-<index>`
in one folder of the machine and writes into it who it is; the kernel frees a lock however its holder ends. There is one
holder, except where every holder wants to share: the runs of a stack with several slots (`grpo up --slots N`, GRPO_SLOTS).
Containers have folders of their own: mount one folder into all that may see the same GPU, and name it in GRPO_GPU_LOCKS.

Everybody may write to the folder, so nothing in it is trusted. A user writes only to files of its own and reads, within bounds,
what others have written. A process locks a file of its own first and looks at all others then: of two that begin at once, at
least one sees the other. A process that is in the way gives up its lock and tries again after a moment; nobody waits on a lock.
"""

import contextlib
import fcntl
import json
import os
import random
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as stored_dataclass

from grpo_core.errors import DeviceError, name_of, raised_as
from grpo_core.machine.jsonfile import build, parse_json
from grpo_core.machine.locks import LOOKING_SECONDS, SAFE_FLAGS, holder_of, regular_file, try_lock, user_name

FOLDER_VARIABLE, SLOTS_VARIABLE = "GRPO_GPU_LOCKS", "GRPO_SLOTS"
"""Environment variables: the folder of the locks; how many runs take place at a time (set for the runs of a stack)."""
DEFAULT_FOLDER = Path("/tmp/grpo-gpu-locks")
"""One for all users, whatever their TMPDIR is."""
AGREEMENT_SECONDS = 10.0
"""How long processes that begin at once try to agree who takes a GPU."""
MAX_FILES, MAX_BYTES, MAX_SHARE = 4096, 4096, 1024
"""Files of one GPU in the folder, bytes of what a holder writes, holders of a GPU."""


_Positive = Annotated[int, Field(gt=0, lt=2**31)]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU of this machine."""

    uuid: str
    name: str


@stored_dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True))
class _Facts:
    """What a holder writes into its file."""

    pid: _Positive
    run_dir: str
    share: _Positive
    """With how many it shares the GPU."""
    joined: bool = True
    """Whether it has the GPU; otherwise it is still looking who else is there. Versions that did not write it had."""


_UNKNOWN = _Facts(pid=1, run_dir="", share=1)
"""Of a holder whose file holds something else: it has the GPU, and shares it with nobody."""
_Holder = tuple[str, _Facts]
"""A process that has locked a file of a GPU: who (`process 4711`, with its user and run if they are known), what it wrote."""


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
    path = Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)
    facts = {"pid": os.getpid(), "run_dir": str(run_path.resolve())[:1000], "share": max(1, slot_count())}
    remedy = f"name a folder that every user of this machine can write to in {FOLDER_VARIABLE}"
    with (
        raised_as(DeviceError, f"GPU locks {path}: cannot be used ({{cause}}); {remedy}", OSError),
        _opened_folder(path) as folder,
    ):
        lock = _join(gpu, folder, facts)
    with lock:
        yield


@contextlib.contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    """Yield a descriptor of the folder, made where there is none; everything is opened relative to it.

    Raises:
        DeviceError: it is a symbolic link, or others could replace each other's files in it.
        OSError: it cannot be made or opened.
    """
    if path.is_symlink():
        raise DeviceError(
            f"GPU locks {path}: is a symbolic link, which could lead other users elsewhere; remove it, or name the folder "
            f"itself in {FOLDER_VARIABLE}"
        )
    is_ours = path == DEFAULT_FOLDER
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        is_ours = True
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if is_ours and os.fstat(folder).st_uid == os.geteuid():
            os.fchmod(folder, 0o1777)  # as /tmp: every user makes files, nobody removes another one's
        _check_folder(path, folder)
        yield folder
    finally:
        os.close(folder)


def _check_folder(path: Path, folder: int) -> None:
    deadline = time.monotonic() + LOOKING_SECONDS
    while not os.access(".", os.W_OK, dir_fd=folder) and time.monotonic() < deadline:
        time.sleep(LOOKING_SECONDS / 10)  # another user may just be making it
    facts = os.fstat(folder)
    if facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX:
        raise DeviceError(
            f"GPU locks {path}: every user who may write there can remove the locks of others; "
            f"let its owner, {user_name(facts.st_uid)}, run `chmod 1777 {path}`, or name another folder in {FOLDER_VARIABLE}"
        )


def _join(gpu: Gpu, folder: int, facts: Mapping[str, Any]) -> IO[bytes]:
    """Lock a file for a GPU if its holders and this process all share it with that many.

    Raises:
        DeviceError: they do not, or it could not be agreed who takes it.
    """
    began, others = time.monotonic(), list[_Holder]()
    while True:
        lock, name = _lock_own(gpu, folder)
        if lock is not None:
            with contextlib.ExitStack() as unless_joined:
                unless_joined.enter_context(lock)
                _write(lock, {**facts, "joined": False})
                others = _look(gpu, folder, but=name)
                if len(others) < min([facts["share"], *(other.share for _, other in others)]) and _is_still(lock, folder, name):
                    _write(lock, {**facts, "joined": True})
                    unless_joined.pop_all()
                    return lock
        # One look may meet a process that is only trying; nobody but those who have the GPU is a reason to give up soon.
        waited = time.monotonic() - began
        has_holders = lock is not None and any(other.joined for _, other in others)
        if waited > (LOOKING_SECONDS if has_holders else AGREEMENT_SECONDS):
            break
        time.sleep(random.uniform(0.005, 0.1))  # or two would meet again and again
    if not others:
        raise DeviceError(
            f"GPU {gpu.name} ({gpu.uuid}): no lock file could be made within {AGREEMENT_SECONDS:.0f} s; "
            f"name another folder in {FOLDER_VARIABLE}"
        )
    raise DeviceError(
        f"GPU {gpu.name} ({gpu.uuid}): in use by {', '.join(who for who, _ in others[:8])}; wait for it or end it, "
        f"choose another GPU with CUDA_VISIBLE_DEVICES, or let runs share it on purpose with `grpo up --slots N`"
    )


def _lock_own(gpu: Gpu, folder: int) -> tuple[IO[bytes] | None, str]:
    """Lock the first free file of this user; (None, ...) where each is locked, or is no file of this user's."""
    for index in range(MAX_SHARE):
        name = f"{gpu.uuid}-{os.geteuid()}-{index}"
        file = _open_own(name, folder)
        if file is None:
            continue
        if os.fstat(file.fileno()).st_uid == os.geteuid() and try_lock(file):
            return file, name
        file.close()
    return None, ""


def _open_own(name: str, folder: int) -> IO[bytes] | None:
    """Open a file of this user's, made where there is none; None where another user has put something in its place.

    Raises:
        OSError: none can be made in this folder.
    """
    try:
        return regular_file(os.open(name, os.O_RDWR | SAFE_FLAGS, dir_fd=folder), Path(name))
    except FileNotFoundError:
        pass
    except OSError:  # another user's file, a link, a folder, a pipe
        return None
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFE_FLAGS, 0o644, dir_fd=folder)
    except FileExistsError:  # made in this moment by another process
        return None
    os.fchmod(descriptor, 0o644)  # whatever the umask is: others read it to know whether it is locked, and by whom
    return regular_file(descriptor, Path(name))


def _is_still(lock: IO[bytes], folder: int, name: str) -> bool:
    """Return whether the name leads to the file that is locked: the folder may have been cleaned in between."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _look(gpu: Gpu, folder: int, but: str) -> list[_Holder]:
    """Return who has locked files of a GPU, all users' and those of older versions, whose names hold no user.

    Raises:
        DeviceError: there are more files than any honest use would make.
    """
    names = sorted(
        name for name in os.listdir(folder) if name != but and re.fullmatch(rf"{re.escape(gpu.uuid)}-(\d+-)?\d+", name)
    )
    if len(names) > MAX_FILES:
        raise DeviceError(
            f"GPU {gpu.name} ({gpu.uuid}): {len(names)} lock files, more than the {MAX_FILES} that are read; "
            f"remove them if no run is under way, or name another folder in {FOLDER_VARIABLE}"
        )
    return [holder for name in names if (holder := _holder_of(name, folder)) is not None]


def _holder_of(name: str, folder: int) -> _Holder | None:
    """Return who has locked a file; None where nobody has, or it is no file that can be locked."""
    try:
        file = regular_file(os.open(name, os.O_RDONLY | SAFE_FLAGS, dir_fd=folder), Path(name))
    except OSError:  # gone, a link, a folder, a pipe; or closed to others, which no file of ours is
        return None
    with file:
        # Shared: two that look do not take each other for a holder.
        return None if try_lock(file, fcntl.LOCK_SH) else _describe(file)


def _describe(file: IO[bytes]) -> _Holder:
    who, facts = holder_of(file), _UNKNOWN
    with contextlib.suppress(ValueError, OSError):  # another user may have written anything
        facts = build(_Facts, parse_json(os.pread(file.fileno(), MAX_BYTES, 0)))
    if facts is not _UNKNOWN and who == "another process":
        who = f"process {facts.pid}"
    owner = os.fstat(file.fileno()).st_uid
    if owner != os.geteuid() and " of user " not in who:
        who += f" of user {user_name(owner)}"
    return (who if facts is _UNKNOWN else f"{who} ({name_of(facts.run_dir, most=300)})"), facts


def _write(file: IO[bytes], facts: Mapping[str, Any]) -> None:
    file.truncate(0)
    os.pwrite(file.fileno(), json.dumps(facts).encode(), 0)
