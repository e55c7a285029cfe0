"""Files and folders that only their owner may read: secrets, and whatever may hold one."""

import contextlib
import os
from pathlib import Path

FOLDER_MODE, FILE_MODE = 0o700, 0o600


def private_folder(path: Path) -> Path:
    """Make a folder, or take the one that is there, and close it to everybody but its owner; return it.

    Raises:
        OSError: it cannot be made, or belongs to another user.
    """
    path.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    path.chmod(FOLDER_MODE)  # one that was there before; `mode` is also cut by the umask
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, at no moment readable by others; a reader finds all of it or what was there.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    # O_EXCL: nobody's link or file with looser rights is written into.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
