"""The order of the test files under xdist: the longest first, so that none is begun when all others are done.

longest_files.txt holds the long ones; every other file, short or new, comes before them. `GRPO_RECORD_LONGEST=1 make test`
writes the seconds of the files that it ran.
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
        """Start with what is known of files that this session does not run."""
        self._known = read_table()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of a setup, a test or a teardown."""
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the long files, the longest first."""
        seconds = {file: number for file, number in {**self._known, **self._seconds}.items() if number >= LONG_SECONDS}
        rows = [f"{number:5.0f} {file}" for file, number in sorted(seconds.items(), key=lambda item: -item[1])]
        heading = [line for line in TABLE.read_text().splitlines() if line.startswith("#")]
        TABLE.write_text("\n".join([*heading, *rows]) + "\n")
