"""Locks that the kernel frees when their holder ends, however it ends.

Lock files may lie where others can write: no link is followed, nothing but a regular file is opened, and no wait is endless or
silent (`waited_lock`).
"""

import contextlib
import errno
import fcntl
import logging
import os
import pwd
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from grpo_core.errors import BusyError, GrpoError, cause

logger = logging.getLogger(__name__)

LOOKING_SECONDS = 0.5
NOTICE_SECONDS = 2.0
"""A wait that lasts longer than this is reported, and again whenever it has become ten times as long."""
SAFE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""No link is followed, no child inherits it, and a named pipe in the place of a file does not block."""
_locked: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()


def open_lock(path: Path) -> IO[bytes]:
    """Open a lock file, made where there is none; whoever may write to its folder may lock it, nobody else.

    Raises:
        OSError: it cannot be opened, or is a link or anything but a regular file.
    """
    if path.is_symlink():  # O_NOFOLLOW below refuses it as well, in words that nobody understands
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    try:
        # Without O_CREAT first: in a sticky folder Linux refuses it for a file of another user.
        return regular_file(os.open(path, os.O_RDWR | SAFE_FLAGS), path)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | SAFE_FLAGS, 0o600)
    writers = path.parent.stat().st_mode & 0o022
    if writers:  # a folder that a group or everybody shares on purpose
        with contextlib.suppress(PermissionError):  # another user has made the file in this moment
            os.fchmod(descriptor, 0o600 | writers | writers << 1)
    return regular_file(descriptor, path)


def regular_file(descriptor: int, path: Path) -> IO[bytes]:
    """Return the file of a descriptor; it is closed where it is anything but a regular file.

    Raises:
        OSError: it is something else, such as a named pipe.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    return os.fdopen(descriptor, "r+b" if writable else "rb", buffering=0)


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


def lock_holder(path: Path) -> str | None:
    """Return who holds the lock of a file now (`process 4711`), None if nobody does or there is no such file."""
    if not path.is_file():
        return None
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except PermissionError:  # of another user: the kernel's list has to do
        return _listed_holder(path.stat())
    with file:
        return None if try_lock(file) else holder_of(file)


def _pause() -> None:
    time.sleep(LOOKING_SECONDS / 10)


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
) -> Iterator[IO[bytes]]:
    """Hold the lock of a file, made where there is none, while inside; wait until whoever holds it is done; yield the file.

    Args:
        path: the file; it stays, since removing it would take the lock from those who wait.
        purpose: what the holder does, for the reports: `makes the model scratch:sums`.
        wait: called again and again while somebody else holds it; what it raises ends the waiting.
        patience: seconds until a holder that does not end is an error; infinite where `wait` can end the waiting.
        say: takes a line that names the holder, when the wait becomes long.

    Raises:
        BusyError: somebody else holds it for longer than `patience`; names the holder.
        OSError: the file cannot be opened, or is a link or anything but a regular file.
    """
    with open_lock(path) as file:
        began, report_at = time.monotonic(), NOTICE_SECONDS
        while not try_lock(file):
            waited = time.monotonic() - began
            if waited > patience:
                raise BusyError(
                    f"{path}: {holder_of(file)}, which {purpose}, has held this lock for more than {patience:.0f} s; "
                    "wait for it, or end it if it hangs, and try again"
                )
            if waited > report_at:
                report_at *= 10
                say(f"waiting for {holder_of(file)}, which {purpose}")
            wait()
        yield file


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
            logger.info("nobody else is kept from what %s: %s", purpose, cause(error))
        yield


def _let_go() -> None:
    """Close this process's copies: the lock itself stays with the process that it was forked from."""
    for file in list(_locked):
        with contextlib.suppress(OSError, ValueError):
            file.close()


os.register_at_fork(after_in_child=_let_go)


def holder_of(file: IO[bytes]) -> str:
    """Return who holds the lock of an open file, as the kernel lists it: `process 4711`, or `process 4711 of user ada`."""
    return _listed_holder(os.fstat(file.fileno())) or "another process"


def _listed_holder(facts: os.stat_result) -> str | None:
    """Return who holds the lock of a file according to the kernel's list; None where it lists nobody that this process sees."""
    try:
        fields = [line.replace("->", "").split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    # 1: FLOCK ADVISORY WRITE 4711 fe:00:1234567 0 EOF
    rows = [row for row in fields if len(row) > 5 and row[1] == "FLOCK" and row[5].rpartition(":")[2] == str(facts.st_ino)]
    device = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:"
    # Some file systems show processes another device than the kernel's list; the inode alone has to do there.
    holders = [row[4] for row in rows if row[5].startswith(device)] or [row[4] for row in rows]
    if not holders or not holders[0].isdecimal() or holders[0] == "0":  # 0 and -1: of another container
        return None
    return f"process {holders[0]}{_foreign_user(holders[0])}"


def _foreign_user(process: str) -> str:
    """Return ` of user ada` for a process of another user, nothing for one's own."""
    try:
        owner = Path("/proc", process).stat().st_uid
    except OSError:
        return ""
    return "" if owner == os.geteuid() else f" of user {user_name(owner)}"


def user_name(uid: int) -> str:
    """Return the name of a user, its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
