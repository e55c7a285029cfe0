"""Wall-clock seconds by phase of one step."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Adds up seconds under names: `with clock("rollout"): ...`."""

    def __init__(self) -> None:
        """Start the step's clock."""
        self._start = time.perf_counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count what happens inside towards `phase`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - started

    def add(self, phase: str, seconds: float) -> None:
        """Count seconds that were measured otherwise towards `phase`."""
        self._seconds[phase] += seconds

    def seconds(self, phase: str) -> float:
        """Return the seconds counted so far, 0 for a phase that did not happen."""
        return self._seconds[phase]

    def total(self) -> float:
        """Return the seconds since the clock was made."""
        return time.perf_counter() - self._start
