"""Another process that holds a lock."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TAKE = """
import fcntl, sys, time
file = open(sys.argv[1], "ab")
fcntl.flock(file, fcntl.LOCK_EX)
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
"""


@contextlib.contextmanager
def held_by_another(path: Path, seconds: float = 60.0) -> Iterator[int]:
    """Have a process hold the lock of a file while inside, for so many seconds at most; yield its id."""
    with subprocess.Popen([sys.executable, "-c", TAKE, str(path), str(seconds)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        yield holder.pid
        holder.kill()
