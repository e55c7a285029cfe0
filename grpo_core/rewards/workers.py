"""This process's side of the workers that judge completions: started at the first need, ended with this process."""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from grpo_core.errors import RewardError

ROOT = Path(__file__).resolve().parents[2]
MODULE = "grpo_core.rewards.pool"
STANDARD_ERROR = 2
ASLEEP_FACTOR = 10
"""The wall-clock backstop, in bounds: for a row that sleeps and so never reaches its bound in CPU time."""
LEAST_ASLEEP_SECONDS = 10.0

Row = tuple[Any, ...]
"""The key of a judge (`judges.load_judge`) and its arguments, as JSON can hold them."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came of judging one row."""

    kind: Literal["value", "over", "asleep", "error"]
    """Scored; its bound exceeded; no verdict since it slept; the judge raised."""
    content: Any
    """The score or None; why; seconds; the error's text."""


class Workers:
    """The process with the workers (`pool.py`)."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._one_at_a_time = threading.Lock()

    def start(self, judges: Iterable[str]) -> None:
        """Begin to start the process, if it does not run; the imports of `judges` take place beside what is done here."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), *judges],
            stdin=subprocess.DEVNULL,
            stdout=STANDARD_ERROR,  # what a library prints
            pass_fds=[theirs.fileno()],
            # One order of sets and dictionaries in every process: sympy's results may depend on it.
            env={**os.environ, **one_thread, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        )
        theirs.close()

    def judge(self, rows: Sequence[Row], cpu_seconds: float, full_cpu_seconds: float) -> list[Reply]:
        """Return what came of each row, in their order.

        Args:
            rows: to be judged.
            cpu_seconds: that each may take now.
            full_cpu_seconds: the bound of the reward function, by which the wall-clock backstop is measured.

        Raises:
            RewardError: the process with the workers has died.
        """
        if not rows:
            return []
        asleep = max(LEAST_ASLEEP_SECONDS, ASLEEP_FACTOR * full_cpu_seconds)
        request = json.dumps({"rows": rows, "cpu_seconds": cpu_seconds, "asleep_seconds": asleep}).encode()
        with self._one_at_a_time:
            self.start(dict.fromkeys(row[0] for row in rows))
            try:
                replies = json.loads(self._exchange(request))
            except BaseException:  # an interrupt, too: a reply that comes late would be taken for the next one's
                self.close()
                raise
        return [Reply(kind=kind, content=content) for reply in replies for kind, content in reply.items()]

    def _exchange(self, request: bytes) -> bytes:
        assert self._connection is not None
        assert self._process is not None
        try:
            self._connection.send_bytes(request)
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            process = self._process
            self.close()
            ended = f"exit code {process.returncode}"
            raise RewardError(
                f"the process that judges completions ({MODULE}) ended ({ended}); the log above says why"
            ) from None

    def close(self) -> None:
        """End the process, and with it its workers."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()


WORKERS = Workers()
"""Of this process: whatever judges shares them."""
atexit.register(WORKERS.close)
