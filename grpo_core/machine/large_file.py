"""New files of hundreds of megabytes, written past the page cache and summed on the way.

Through the cache, every byte needs a page that the kernel has to find, to fill and to write back, and the sum of a file is
taken of a second reading: work for cores and memory that a training beside it wants. Here the disk reads one small buffer, and
the thread that writes mostly waits for it.
"""

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

BLOCK = 2**20
"""Bytes that are handed to the disk at once."""
ALIGNMENT = 4096
"""Past the cache, a disk takes whole multiples of this."""
PAST_THE_CACHE = getattr(os, "O_DIRECT", 0)


class LargeFile:
    """What `large_file` opens: it takes bytes in order."""

    def __init__(self, descriptor: int) -> None:
        """Write into an open, empty file."""
        self._descriptor = descriptor
        self._buffer = memoryview(mmap.mmap(-1, BLOCK))  # which begins at a multiple of ALIGNMENT
        self._filled = self._size = 0
        self._sum = hashlib.sha256()
        self._past_the_cache(True)

    def write(self, data: "bytes | memoryview") -> int:
        """Append bytes; return how many: all.

        Raises:
            OSError: the disk is full, or reports an error.
        """
        rest = memoryview(data).cast("B")
        self._size += (written := len(rest))
        while rest:
            part, rest = rest[: BLOCK - self._filled], rest[BLOCK - self._filled :]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == BLOCK:
                self._hand_on(BLOCK)
        return written

    def flush(self) -> None:
        """Do nothing: `torch.save` calls it."""

    def finish(self) -> None:
        """Write what is left, and return once the file would survive a power failure."""
        if self._filled:
            self._hand_on(-(-self._filled // ALIGNMENT) * ALIGNMENT)
            os.ftruncate(self._descriptor, self._size)
        os.fsync(self._descriptor)

    @property
    def sha256(self) -> str:
        """Sum of the finished file, in hexadecimal digits."""
        return self._sum.hexdigest()

    def _hand_on(self, size: int) -> None:
        self._sum.update(self._buffer[: self._filled])  # while it is in the processor's cache
        rest = self._buffer[:size]
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._past_the_cache(False):
                    raise
        self._filled = 0

    def _past_the_cache(self, wanted: bool) -> bool:
        """Write past the cache, or no longer; return whether that changed anything. Not every file system can."""
        before = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        after = before | PAST_THE_CACHE if wanted else before & ~PAST_THE_CACHE
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, after)
            return after != before
        return False


@contextlib.contextmanager
def large_file(path: Path) -> Iterator[LargeFile]:
    """Open a new file, to be written inside; where that succeeds, it is durable afterwards.

    Args:
        path: where nothing is yet.

    Raises:
        OSError: it cannot be made or written; what there is of it stays.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        file = LargeFile(descriptor)
        yield file
        file.finish()
    finally:
        os.close(descriptor)
