"""Locks on files (flock), which the kernel frees when their holder ends, however it ends.

A child that inherits the descriptor of a locked file holds the lock, too.
"""

import contextlib
import fcntl
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from grpo_core.errors import BusyError, GrpoError, cause

logger = logging.getLogger(__name__)

LOOKING_SECONDS = 0.5
NOTICE_SECONDS = 2.0
"""A wait that lasts longer than this is reported."""
_locked: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()


def open_lock(path: Path) -> IO[bytes]:
    """Open a lock file, made where there is none: for its owner alone, since who can read it can lock it.

    Raises:
        OSError: it cannot be opened.
    """
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")


def try_lock(file: IO[bytes], kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file for this process and return whether that was possible; closing the file frees it.

    A process that is forked from this one does not keep it: workers of a user's reward function may outlive the training.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    _locked.add(file)
    return True


def _close_copies() -> None:
    """Close this process's copies: the lock itself stays with the process that it was forked from."""
    for file in list(_locked):
        with contextlib.suppress(OSError, ValueError):
            file.close()


os.register_at_fork(after_in_child=_close_copies)


def _pause() -> None:
    time.sleep(LOOKING_SECONDS / 10)


def lock_holder(path: Path) -> str | None:
    """Return who holds the lock of a file now (`process 4711`), None if nobody does or there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return None if try_lock(file) else holder_of(file)


def holder_of(file: IO[bytes]) -> str:
    """Return who holds the lock of an open file, as the kernel lists it: `process 4711`."""
    inode = os.fstat(file.fileno()).st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()  # 1: FLOCK ADVISORY WRITE 4711 fe:00:1234567 0 EOF
        # A process of another container has the number 0 or -1.
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}") and int(fields[4]) > 0:
            return f"process {fields[4]}"
    return "another process"


def locked_soon(file: IO[bytes], kind: type[GrpoError], refusal: str) -> IO[bytes]:
    """Lock an open file and return it; retry for half a second, since somebody may just be looking whether the lock is held.

    Args:
        file: closed where somebody else holds its lock.
        kind: of the error that is raised then.
        refusal: its message, with `{holder}` in place of who holds the lock.
    """
    deadline = time.monotonic() + LOOKING_SECONDS
    while not try_lock(file):
        if time.monotonic() > deadline:
            with file:
                raise kind(refusal.replace("{holder}", holder_of(file)))
        _pause()
    return file


@contextlib.contextmanager
def waited_lock(
    path: Path,
    purpose: str,
    *,
    wait: Callable[[], None] = _pause,
    patience: float = float("inf"),
    say: Callable[[str], None] = logger.warning,
) -> Iterator[None]:
    """Hold the lock of a file, made where there is none, while inside; wait until whoever holds it is done.

    Args:
        path: the file; it stays, since removing it would take the lock from those who wait.
        purpose: what the holder does, for the reports: `makes the model scratch:sums`.
        wait: called again and again while somebody else holds it; what it raises ends the waiting.
        patience: seconds until a holder that does not end is an error; infinite where `wait` can end the waiting.
        say: takes a line that names the holder, when the wait becomes long.

    Raises:
        BusyError: somebody else holds it for longer than `patience`; names the holder.
        OSError: the file cannot be opened.
    """
    began, is_said = time.monotonic(), False
    with open_lock(path) as file:
        while not try_lock(file):
            waited = time.monotonic() - began
            if waited > patience:
                raise BusyError(
                    f"{path}: {holder_of(file)}, which {purpose}, has held this lock for more than {patience:.0f} s; "
                    "wait for it, or end it if it hangs, and try again"
                )
            if waited > NOTICE_SECONDS and not is_said:
                say(f"waiting for {holder_of(file)}, which {purpose}")
                is_said = True
            wait()
        yield


@contextlib.contextmanager
def one_at_a_time(
    path: Path,
    purpose: str,
    *,
    patience: float,
    wait: Callable[[], None] = _pause,
    say: Callable[[str], None] = logger.warning,
) -> Iterator[None]:
    """Hold a lock as `waited_lock` does, to keep others from the same work.

    Where the folder cannot be written, or somebody holds the lock for longer than `patience`, the work is done twice.
    """
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(waited_lock(path, purpose, wait=wait, patience=patience, say=say))
        except BusyError as error:
            say(f"not waiting any longer: {error}")
        except OSError as error:
            say(f"nobody else is kept from what {purpose}: {cause(error)}")
        yield
