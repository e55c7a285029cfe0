"""What every reader must do with a mutated file: give a valid value or refuse it clearly, and either in seconds."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, settings

from grpo_core.errors import GrpoError

SECONDS = 10
MAX_LINES, MAX_LINE_CHARACTERS = 12, 1500
"""The longest line that is meant lists every task of reasoning-gym that is allowed."""
REFUSED = object()
"""What `outcome` gives where a file was refused clearly."""


def search(examples: int) -> settings:
    """Return the settings of a search over mutations: the same ones in every run, 10 s each at most.

    GRPO_MUTATIONS=20 tries twenty times as many, others every time.
    """
    factor = os.environ.get("GRPO_MUTATIONS")
    return settings(
        max_examples=examples * int(factor or 1),
        derandomize=factor is None,
        database=None,
        deadline=timedelta(seconds=SECONDS),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


class HangError(BaseException):
    """Not an Exception, so that no reader takes it for a damaged file."""


@contextmanager
def limited_time() -> Iterator[None]:
    """End what is inside after SECONDS of processor time, which a busy machine does not shorten."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise HangError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(read: Callable[[], Any], *named: str) -> Any:
    """Return what `read` gives, or REFUSED where it refuses clearly and names one of `named`; anything else is a failure."""
    try:
        with limited_time():
            return read()
    except GrpoError as error:
        assert_clear(str(error), *named)
        return REFUSED


def assert_clear(message: str, *named: str) -> None:
    """A message is a few lines that a terminal can print, and says where the fault is."""
    lines = message.splitlines()
    assert 1 <= len(lines) <= MAX_LINES, message
    assert all(line.strip() and len(line) <= MAX_LINE_CHARACTERS for line in lines), message
    assert "Traceback" not in message
    assert not named or any(name in message for name in named), message


@dataclass
class Tally:
    """How many different mutations were tried, and what became of them."""

    valid: Sequence[bytes]
    """What was mutated: a mutation that changes nothing is none."""
    seen: set[bytes] = field(default_factory=set)
    past_parser: int = 0
    accepted: int = 0

    def count(self, content: bytes, parsed: bool, accepted: bool) -> None:
        """Count a mutation; one that has been tried before does not count again."""
        digest = sha256(content).digest()
        if digest in self.seen or content in self.valid:
            return
        self.seen.add(digest)
        self.past_parser += parsed
        self.accepted += accepted

    def check(self, name: str, mutations: int, past_parser: int, refuses: bool = True) -> None:
        """Assert that the search was as large as the plan says and found valid and refused ones, and print what it found."""
        found = f"{name}: {len(self.seen)} mutations, {self.past_parser} past the parser, {self.accepted} valid"
        sys.stdout.write(found + "\n")
        assert len(self.seen) >= mutations, found
        assert self.past_parser >= past_parser, found
        assert 0 < self.accepted < len(self.seen) + (not refuses), found


def parses(parse: Callable[[], Any]) -> bool:
    """Tell whether a plain parser, not this project's, gets a value out of it."""
    try:
        with limited_time():
            parse()
    except Exception:  # noqa: BLE001  (whatever a parser raises, it has no value)
        return False
    return True
