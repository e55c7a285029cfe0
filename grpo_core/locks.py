"""Locks that the kernel frees when their holder ends, however it ends."""

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

LOOKING_SECONDS = 0.5
_locked: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()


def try_lock(file: IO[bytes]) -> bool:
    """Lock an open file for this process and return whether that was possible; closing the file frees it.

    A process that is forked from this one does not hold it on: workers of a user's reward function may outlive the training.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    _locked.add(file)
    return True


def lock_holder(path: Path) -> str | None:
    """Return who holds the lock of a file now (`process 4711`), None if nobody does or there is no such file."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        return None if try_lock(file) else holder_of(file)


def lock_soon(file: IO[bytes]) -> bool:
    """Do as `try_lock`, for half a second: somebody may just be looking whether it is held."""
    deadline = time.monotonic() + LOOKING_SECONDS
    while not try_lock(file):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOKING_SECONDS / 10)
    return True


@contextlib.contextmanager
def waited_lock(path: Path, wait: Callable[[], None] = lambda: time.sleep(LOOKING_SECONDS / 10)) -> Iterator[None]:
    """Hold the lock of a file, made where there is none, for as long as the block runs; wait until whoever holds it is done.

    Args:
        path: the file; it stays, since to remove it would take the lock from under those who wait.
        wait: called again and again while somebody else holds it; what it raises ends the waiting.
    """
    with path.open("ab") as file:
        while not try_lock(file):
            wait()
        yield


def _let_go() -> None:
    """Close this process's copies: the lock itself stays with the process that it was forked from."""
    for file in list(_locked):
        with contextlib.suppress(OSError, ValueError):
            file.close()


os.register_at_fork(after_in_child=_let_go)


def holder_of(file: IO[bytes]) -> str:
    """Return who holds the lock of an open file, as far as the kernel tells: `process 4711`."""
    inode = os.fstat(file.fileno()).st_ino
    try:
        fields = [line.replace("->", "").split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return "another process"
    # 1: FLOCK ADVISORY WRITE 4711 fe:00:1234567 0 EOF
    holders = [row[4] for row in fields if len(row) > 5 and row[1] == "FLOCK" and row[5].rpartition(":")[2] == str(inode)]
    return f"process {holders[0]}" if holders and holders[0] != "-1" else "another process"
