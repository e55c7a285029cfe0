"""The process that judges completions within a bound, started by `workers.py`: `python -m grpo_core.rewards.pool FD JUDGE...`.

It imports the judges once and forks a worker for each core: it has one thread and no torch, so a fork is safe, and replacing a
worker takes milliseconds where a new interpreter takes half a second. It never runs a judge itself. A request and its reply are
one message each, in JSON, on a connection whose messages have their length in front: what it holds is what has not been read.

    {"rows": [[judge, argument, ...], ...], "cpu_seconds": bound, "asleep_seconds": backstop}
    [{"value": score} | {"over": why} | {"asleep": seconds} | {"error": text}, ...]

The end of the connection ends it and its workers, also in the middle of a request; a worker dies with it.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from grpo_core.rewards.judges import Judge, load_judge

MAX_WORKERS = 16
POLL_SECONDS = 0.01
"""Between two looks at a worker: the kernel counts CPU time in ticks of this length."""
WORKER_MEMORY = 2**30
"""Bytes of address space that a worker may take beside what it was forked with."""
MAX_REPLY = 2**28
"""Bytes. Text that was written past the protocol begins with a greater length: a blank and more four times."""
PR_SET_PDEATHSIG = 1
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What the kernel says of a process."""

    cpu_seconds: float
    is_running: bool
    """On a core, or waiting for one."""


class JudgeProcess:
    """A forked process that judges one row after the other, and what is known of the row that it has."""

    def __init__(self, judges: Mapping[str, Judge]) -> None:
        """Fork it."""
        self.connection, theirs = Pipe()
        pool = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _work(theirs, judges, pool)
        theirs.close()
        self.row = -1
        self._began = self._seen = 0.0
        self._asleep = 0.0
        self._looked = 0.0

    def send(self, number: int, row: list[Any]) -> None:
        """Hand it a row."""
        self.row = number
        self._began = self._seen = _usage(self.pid).cpu_seconds
        self._asleep, self._looked = 0.0, time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it died idle; reading from it says so
            self.connection.send_bytes(json.dumps(row).encode())

    def receive(self) -> dict[str, Any]:
        """Return what it says of its row; it is at hand."""
        try:
            found: dict[str, Any] = json.loads(self.connection.recv_bytes(MAX_REPLY))
        except (EOFError, OSError):
            return {"over": "it ended its worker"}
        return found

    def overrun(self, cpu_seconds: float, asleep_seconds: float) -> dict[str, Any] | None:
        """Return that its row has exceeded a bound, or sleeps; None while neither is so."""
        usage, now = _usage(self.pid), time.monotonic()
        if usage.cpu_seconds - self._began >= cpu_seconds:
            return {"over": f"it took {cpu_seconds:g} s of CPU time"}
        # A process that waits for a core does not sleep. What this process has not seen (it was stopped) does not count either.
        is_idle = not usage.is_running and usage.cpu_seconds == self._seen
        self._asleep = self._asleep + min(now - self._looked, 10 * POLL_SECONDS) if is_idle else 0.0
        self._seen, self._looked = usage.cpu_seconds, now
        return {"asleep": self._asleep} if self._asleep >= asleep_seconds else None

    def end(self) -> None:
        """Kill it and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.connection.close()


class Pool:
    """Workers, which know every judge that was loaded before they were forked."""

    def __init__(self, requests: Connection, judges: Iterable[str]) -> None:
        """Load judges; workers are forked when there are rows for them.

        Args:
            requests: whose end is the end of whoever waits for replies.
            judges: to be loaded.
        """
        self._requests = requests
        self._judges: dict[str, Judge] = {}
        self._workers: list[JudgeProcess] = []
        self._load(judges)

    def _load(self, judges: Iterable[str]) -> None:
        missing = [key for key in dict.fromkeys(judges) if key not in self._judges]
        if missing:
            self.end()
            self._judges |= {key: load_judge(key) for key in missing}

    def judge(self, rows: list[list[Any]], cpu_seconds: float, asleep_seconds: float) -> list[dict[str, Any]]:
        """Return what its judge says of each row, in their order."""
        self._load(row[0] for row in rows)
        replies: list[dict[str, Any]] = [{} for _ in rows]
        waiting = deque(enumerate(rows))
        busy: list[JudgeProcess] = []
        while waiting or busy:
            self._hand_out(waiting, busy)
            ready = wait([self._requests, *(worker.connection for worker in busy)], POLL_SECONDS)
            if self._requests in ready:  # whoever waits for the reply has ended
                self.end()
                raise SystemExit
            for worker in list(busy):
                reply = worker.receive() if worker.connection in ready else worker.overrun(cpu_seconds, asleep_seconds)
                if reply is None:
                    continue
                replies[worker.row] = reply
                busy.remove(worker)
                if "value" not in reply and "error" not in reply:
                    self._workers.remove(worker)
                    worker.end()
        return replies

    def _hand_out(self, waiting: "deque[tuple[int, list[Any]]]", busy: list[JudgeProcess]) -> None:
        """Give rows to idle workers, forking those that are missing."""
        most = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
        while waiting and len(busy) < most:
            idle = next((worker for worker in self._workers if worker not in busy), None)
            if idle is None:
                idle = JudgeProcess(self._judges)
                self._workers.append(idle)
            idle.send(*waiting.popleft())
            busy.append(idle)

    def end(self) -> None:
        """End every worker."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()


def _work(requests: Connection, judges: Mapping[str, Judge], pool: int) -> None:
    """Judge rows until the pool is gone."""
    try:
        _die_with(pool)
        # A hostile row must not reach the pool's input and output, nor the other workers.
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)
        kept = requests.fileno()
        os.closerange(3, kept)
        os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
        _confine()
        while True:
            requests.send_bytes(json.dumps(_reply(judges, json.loads(requests.recv_bytes()))).encode())
    finally:
        os._exit(0)


def _reply(judges: Mapping[str, Judge], row: list[Any]) -> dict[str, Any]:
    try:
        return {"value": judges[row[0]](*row[1:])}
    except (MemoryError, RecursionError) as error:
        return {"over": f"{type(error).__name__} while it was judged"}
    except Exception as error:  # noqa: BLE001  (whatever a judge raises is for the user to see)
        return {"error": f"{type(error).__name__}: {error}"}


def _die_with(pool: int) -> None:
    """Let the kernel kill this worker when the pool ends; it says nothing of a pool that ended before it was asked."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pool:
        os._exit(0)


def _confine() -> None:
    """Bound the memory of this worker."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * os.sysconf("SC_PAGE_SIZE") + WORKER_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _usage(pid: int) -> Usage:
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return Usage(cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS, is_running=fields[0] == "R")


def main(requests: Connection, judges: Iterable[str]) -> None:
    """Answer requests until there are no more."""
    pool = Pool(requests, judges)
    with contextlib.suppress(EOFError, OSError):
        while True:
            request = json.loads(requests.recv_bytes())
            found = pool.judge(request["rows"], request["cpu_seconds"], request["asleep_seconds"])
            requests.send_bytes(json.dumps(found).encode())
    pool.end()


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM):  # for whoever started it, who finishes the step
        signal.signal(_number, signal.SIG_IGN)
    main(Connection(int(sys.argv[1])), sys.argv[2:])
