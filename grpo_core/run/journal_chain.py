"""The chain of digests through a journal: each line holds a digest of its own bytes and of the digest before it.

    {"seq":7,...,"data":{...},"digest":"<32 hex digits>"}
    digest = SHA-256(digest of the line before + the bytes of this line up to ',"digest":'), cut to 128 bits

The first line that holds a digest continues from the SHA-256 of all bytes before it: of nothing in a new journal, of the whole
older part in a journal that a version without digests began. A line without a digest after one that has one is a broken chain.
"""

import hashlib
import re

DIGEST_CHARACTERS = 32
_SEAL = re.compile(rb',"digest":"([0-9a-f]{32})"\}\Z')
SEAL_BYTES = len(b',"digest":""}') + DIGEST_CHARACTERS


class Chain:
    """Where a chain has arrived: it seals new lines and checks those that were sealed."""

    def __init__(self) -> None:
        """Begin before the first line."""
        self._older = hashlib.sha256()
        self._num_older = 0
        self.digest = ""
        """Of the newest line; empty while no line had one."""

    def seal(self, body: bytes) -> tuple[bytes, str]:
        """Return (the line with its digest, the digest) for a JSON object; `advance` makes it the newest line."""
        covered = body[:-1]
        digest = _digest(self._before(), covered)
        return covered + b',"digest":"' + digest.encode() + b'"}', digest

    def advance(self, digest: str) -> None:
        """Make a line that was sealed and written the newest one."""
        self.digest = digest

    def check(self, line: bytes) -> str | None:
        """Take the next line of a file, without its newline; return what is wrong with it, None if nothing is.

        Whatever is wrong, the chain continues from the digest that the line holds: a later line can be whole all the same.
        """
        seal = _SEAL.search(line, max(0, len(line) - SEAL_BYTES))
        if seal is None:
            if self.digest:
                return "it holds no digest although the lines before it do: it was changed or added by something else"
            self._older.update(line + b"\n")
            self._num_older += 1
            return None
        expected = _digest(self._before(), line[: seal.start()])
        first, self.digest = not self.digest, seal[1].decode()
        if self.digest == expected:
            return None
        if first and self._num_older:
            return f"its digest is not that of lines 1 to {self._num_older + 1}: one of them was changed, added or removed"
        return "its digest is not that of its content and the line before it: one of the two was changed, added or removed"

    def _before(self) -> str:
        return self.digest or self._older.hexdigest()[:DIGEST_CHARACTERS]


def _digest(before: str, covered: bytes) -> str:
    return hashlib.sha256(before.encode() + covered).hexdigest()[:DIGEST_CHARACTERS]
