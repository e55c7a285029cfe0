"""The order of the test files under xdist: the longest first, so that none is begun when all others are done.

longest_files.txt holds the long ones; every other file, short or new, comes before them. `GRPO_RECORD_LONGEST=1 make test`
adds what it measures; a file that `make test` and `make test-proof` share keeps the larger number. To measure afresh, remove
its lines first.
"""

import math
from collections import defaultdict
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("longest_files.txt")
LONG_SECONDS = 3.0


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


def read_table() -> dict[str, float]:
    """Return {file: seconds}."""
    lines = [line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return {file: float(seconds) for seconds, file in lines}


def put_longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the seconds of their files; within a file they keep their order."""
    seconds = read_table()
    items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), math.inf))


class Recorder:
    """A pytest plugin that writes the table at the end of a session."""

    def __init__(self) -> None:
        """Start with what an earlier session measured."""
        self._known = read_table()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of a setup, a test or a teardown."""
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the long files, the longest first."""
        files = {*self._known, *self._seconds}
        seconds = {file: max(self._known.get(file, 0.0), self._seconds[file]) for file in files}
        longest = sorted(((number, file) for file, number in seconds.items() if number >= LONG_SECONDS), reverse=True)
        rows = [f"{number:5.0f} {file}" for number, file in longest]
        heading = [line for line in TABLE.read_text().splitlines() if line.startswith("#")]
        TABLE.write_text("\n".join([*heading, *rows]) + "\n")
