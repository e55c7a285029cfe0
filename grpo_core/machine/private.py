"""Files and folders that only their owner may read: secrets, and whatever may hold one."""

import contextlib
import os
from pathlib import Path
from typing import IO

FOLDER_MODE, FILE_MODE = 0o700, 0o600


def private_folder(path: Path) -> Path:
    """Make a folder, or take the one that is there, and close it to everybody but its owner; return it.

    Raises:
        OSError: it cannot be made, or belongs to another user.
    """
    path.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    path.chmod(FOLDER_MODE)  # one that was there before; `mode` is also cut by the umask
    return path


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file: whoever reads it, also after a kill or a power failure, finds all of it or what was there before.

    Args:
        path: the file.
        content: text is written as UTF-8.
        mode: rights of the file, at every moment; the umask takes its part of them.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    # O_EXCL: nobody's link or file with looser rights is written into.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def write_private(path: Path, text: str) -> None:
    """Write a file as `write_whole` does, readable by its owner alone.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, text, FILE_MODE)


def append_private(path: Path) -> IO[bytes]:
    """Open a file that only its owner can read, to append to it; one that others could read is closed to them.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with contextlib.suppress(PermissionError):  # of another user, who lets us write: it is theirs to close
        os.fchmod(descriptor, FILE_MODE)
    return os.fdopen(descriptor, "ab")


def close_to_others(path: Path) -> None:
    """Take the rights of everybody but its owner from a file, if it is there and ours."""
    with contextlib.suppress(OSError):
        if not path.is_symlink() and path.is_file():
            path.chmod(FILE_MODE)
