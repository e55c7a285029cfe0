"""The processes that judge completions (`worker.py`): started at the first need, ended with this process."""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from grpo_core.errors import RewardError
from grpo_core.machine.lifeline import LIFELINE_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
MODULE = "grpo_core.rewards.worker"
STANDARD_ERROR = 2
MAX_WORKERS = 8
ROWS_PER_WORKER = 16
"""So few rows are not worth another process."""
WALL_FACTOR, LEAST_WALL_SECONDS = 100, 60.0
"""The wall-clock backstop, in bounds: for a row that sleeps and so never reaches its bound in CPU time."""

Row = tuple[Any, ...]
"""The key of a judge (`judges.load_judge`) and its arguments, as JSON can hold them."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came of judging one row."""

    kind: Literal["value", "over", "asleep", "error"]
    """Scored; its bound exceeded; no verdict in time by the clock; the judge raised."""
    content: Any
    """The score or None; why; seconds; the error's text."""


class Worker:
    """One process."""

    def __init__(self, judges: Iterable[str], lifeline: int) -> None:
        """Begin to start it; the imports of `judges` take place beside what is done here."""
        path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        # One order of sets and dictionaries in every process: sympy's results may depend on it.
        own = {"PYTHONPATH": path, "PYTHONHASHSEED": "0", LIFELINE_VARIABLE: str(lifeline)}
        self.connection, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), *judges],
            stdin=subprocess.DEVNULL,
            stdout=STANDARD_ERROR,  # what a library prints
            pass_fds=[theirs.fileno(), lifeline],
            env={**os.environ, **one_thread, **own},
        )
        theirs.close()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


class Workers:
    """The processes of this one."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._workers: list[Worker] = []
        self._judges: dict[str, None] = {}
        self._lifeline: tuple[int, int] | None = None
        self._one_at_a_time = threading.Lock()

    def start(self, judges: Iterable[str], number: int = MAX_WORKERS) -> None:
        """Begin to start processes that are missing."""
        self._judges |= dict.fromkeys(judges)
        self._lifeline = self._lifeline or os.pipe()
        while len(self._workers) < min(number, MAX_WORKERS, len(os.sched_getaffinity(0))):
            self._workers.append(Worker(self._judges, self._lifeline[0]))

    def judge(self, rows: Sequence[Row], cpu_seconds: float, full_cpu_seconds: float) -> list[Reply]:
        """Return what came of each row, in their order.

        Args:
            rows: to be judged.
            cpu_seconds: that each may take now.
            full_cpu_seconds: the bound of the reward function, by which the wall-clock backstop is measured.

        Raises:
            RewardError: a process cannot begin.
        """
        seconds = max(LEAST_WALL_SECONDS, WALL_FACTOR * full_cpu_seconds)
        with self._one_at_a_time:
            try:
                return self._judged(deque(enumerate(rows)), cpu_seconds, seconds)
            except BaseException:  # an interrupt, too: a reply that comes late would be taken for the next one's
                self.close()
                raise

    def _judged(self, waiting: "deque[tuple[int, Row]]", cpu_seconds: float, wall_seconds: float) -> list[Reply]:
        found: dict[int, Reply] = {}
        busy: dict[Connection, tuple[Worker, int, float]] = {}
        self.start((row[0] for _, row in waiting), 1 + len(waiting) // ROWS_PER_WORKER)
        idle = list(self._workers)
        while waiting or busy:
            while waiting and idle:
                worker, (number, row) = idle.pop(), waiting.popleft()
                request = json.dumps({"row": row, "cpu_seconds": cpu_seconds}).encode()
                busy[worker.connection] = worker, number, time.monotonic() + wall_seconds
                with contextlib.suppress(BrokenPipeError):  # it has died: reading from it says so
                    worker.connection.send_bytes(request)
            ready = wait(list(busy), 1.0)
            for worker, number, _ in [entry for connection, entry in busy.items() if connection in ready]:
                del busy[worker.connection]
                found[number], again = self._received(worker)
                idle.append(again)
            if any(time.monotonic() > deadline for _, _, deadline in busy.values()):
                for _, number, _ in busy.values():
                    found[number] = Reply(kind="asleep", content=wall_seconds)
                self.close()
                break
        return [found[number] for number in sorted(found)]

    def _received(self, worker: Worker) -> tuple[Reply, Worker]:
        """Return what a worker says of its row, and who judges the next one."""
        try:
            ((kind, content),) = json.loads(worker.connection.recv_bytes()).items()
        except (EOFError, OSError):
            worker.end()
            if worker.process.returncode == 1:  # Python's own: it could not even import its judges
                raise RewardError(f"a process that judges completions ({MODULE}) ended; the log above says why") from None
            self._workers.remove(worker)
            assert self._lifeline is not None
            self._workers.append(Worker(self._judges, self._lifeline[0]))
            return Reply(kind="over", content="it ended its worker"), self._workers[-1]
        return Reply(kind=kind, content=content), worker

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()


WORKERS = Workers()
"""Of this process: whatever judges shares them."""
atexit.register(WORKERS.close)
