"""Locks that the kernel frees when their holder ends, however it ends."""

import fcntl
import os
from pathlib import Path
from typing import IO


def try_lock(file: IO[bytes]) -> bool:
    """Lock an open file for this process and return whether that was possible; closing the file frees it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
