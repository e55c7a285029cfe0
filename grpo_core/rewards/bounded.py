"""Reward functions whose completions are judged in processes (`worker.py`), each within a bound in CPU time.

Wall-clock time would make rewards depend on the machine's load. A completion that exceeds the bound scores 0: it must not pay
to hang. Where the gold answer exceeds it on its own, the completions of that prompt cannot be scored.

Nearly every completion is judged in a millisecond, so all of them get FIRST_SECONDS, and those that are late begin again with
the whole bound. At most FULL_BOUNDS whole bounds are spent in a batch; where more are late, they share that time equally, so
that a batch in which everything hangs ends, too, and no completion depends on its place in the batch.

A verdict that comes of a measurement may differ the next time. So a batch's verdicts are journalled with its digest
(`Judgement`), and whoever judges the same batch again, in a resumed or a repeated run, takes them as they were given.
"""

import atexit
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from grpo_core.errors import RewardError

CPU_SECONDS = 1.0
"""Default bound of a completion. Answers of GSM8K take 1 ms, long ones of competition maths up to 0.1 s."""
FIRST_SECONDS = 0.03
FULL_BOUNDS = 20
REPEATED = 10.0
"""Factor on the bound where a batch is judged again: what had its verdict in time gets it again, on a slower machine, too."""
WALL_FACTOR, LEAST_WALL_SECONDS = 100, 60.0
"""The wall-clock backstop, in bounds: for a row that sleeps and so never reaches its bound in CPU time."""
ROOT = Path(__file__).resolve().parents[2]
MODULE = "grpo_core.rewards.worker"
STANDARD_ERROR = 2
MAX_WORKERS = 8
ROWS_PER_WORKER = 16
"""So few rows are not worth another process."""

Row = tuple[Any, ...]
"""The key of a judge (`worker.load_judge`) and its arguments, as JSON can hold them."""
Timeout = Literal["completion", "gold"]
"""Which of the two exceeded the bound."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdicts of one function on one batch, as far as its bound decided them."""

    fn: str
    """Name in metric keys."""
    batch: str
    """Digest of everything that was judged, and of the bound."""
    timeouts: Mapping[int, Timeout]
    """By the completion's number in the batch, from 0; of all others the function's own verdict holds."""

    def as_json(self) -> dict[str, Any]:
        """Return it as a record of the journal holds it."""
        return {"fn": self.fn, "batch": self.batch, "timeouts": {str(row): which for row, which in self.timeouts.items()}}


def judged_json(judged: Sequence[Judgement]) -> dict[str, Any]:
    """Return what a record holds of judgements; nothing where no bound took part."""
    return {"judged": [judgement.as_json() for judgement in judged]} if judged else {}


class Verdicts:
    """The judgements of a run so far, its own and those of the run that it repeats; the first one of a batch stays."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        """Take the judgements of journal records (their `data`)."""
        self._given: dict[tuple[str, str], Mapping[int, Timeout]] = {}
        for found in (judged for data in records for judged in data.get("judged", ())):
            timeouts = {int(row): which for row, which in found["timeouts"].items()}
            self.add(Judgement(fn=found["fn"], batch=found["batch"], timeouts=timeouts))

    def add(self, judgement: Judgement) -> None:
        """Remember a judgement."""
        self._given.setdefault((judgement.fn, judgement.batch), judgement.timeouts)

    def find(self, fn: str, batch: str) -> Mapping[int, Timeout] | None:
        """Return which completions of a batch exceeded the bound, None where it is new."""
        return self._given.get((fn, batch))


@dataclass(frozen=True, kw_only=True)
class BoundedReward:
    """A reward function in TRL's signature that can also be asked for its rows, to judge them within another bound."""

    rows: Callable[..., list[Row]]
    """From `prompts`, `completions` and columns: what is judged, one row a completion."""
    alone: Callable[[Row], Row | None]
    """The gold answer of a row in the place of its completion; None where there is none."""
    judge: str
    """To be imported before the first completion is there."""

    def __call__(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        """Return the score of each completion, 0 where it exceeds the default bound."""
        return judge_batch(self.rows(prompts=prompts, completions=completions, **columns), self.alone, CPU_SECONDS)[0]


class RowError(RewardError):
    """One completion of a batch cannot be scored; whoever knows its prompt and text names them."""

    def __init__(self, row: int, fault: str, hint: str = "") -> None:
        """Keep which one it is, what is wrong, and what its author may not know."""
        super().__init__(fault)
        self.row, self.fault, self.hint = row, fault, hint


def batch_digest(rows: Sequence[Row], cpu_seconds: float) -> str:
    """Return a digest of what is judged and the bound, 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps([cpu_seconds, rows]).encode()).hexdigest()[:32]


def judge_batch(
    rows: Sequence[Row], alone: Callable[[Row], Row | None], cpu_seconds: float, given: Mapping[int, Timeout] | None = None
) -> tuple[list[float | None], dict[int, Timeout]]:
    """Judge a batch.

    Args:
        rows: one a completion; equal ones are judged once.
        alone: returns the row of the gold answer alone.
        cpu_seconds: the bound of each.
        given: what was given on this batch before; its other rows are then judged within a wider bound.

    Returns:
        (scores, None where the gold answer hangs or the judge gives none; which rows exceeded the bound)

    Raises:
        RewardError: a judge raised, a row sleeps, or a process cannot begin.
    """
    texts = [json.dumps(row) for row in rows]
    first = {text: number for number, text in reversed(list(enumerate(texts)))}
    late = dict(given or {})
    unique = {number: rows[number] for number in sorted(first.values()) if number not in late}
    if given is None:
        scores, late = _within_bound(unique, alone, cpu_seconds)
    else:
        scores = WORKERS.judge(unique, REPEATED * cpu_seconds, cpu_seconds)
        late |= dict.fromkeys(unique.keys() - scores.keys(), "completion")
    of_late = {"completion": 0.0, "gold": None}
    timeouts = {number: late[first[text]] for number, text in enumerate(texts) if first[text] in late}
    return [of_late[late[first[text]]] if first[text] in late else scores[first[text]] for text in texts], timeouts


def _within_bound(
    rows: Mapping[int, Row], alone: Callable[[Row], Row | None], cpu_seconds: float
) -> tuple[dict[int, float | None], dict[int, Timeout]]:
    """Judge rows with the short bound first; return (scores, which of them exceeded the whole one)."""
    scores = WORKERS.judge(rows, min(FIRST_SECONDS, cpu_seconds), cpu_seconds)
    golds = {number: gold for number, row in rows.items() if number not in scores and (gold := alone(row)) is not None}
    one_of = {json.dumps(gold): number for number, gold in golds.items()}
    distinct = {number: golds[number] for number in one_of.values()}
    in_time = WORKERS.judge(distinct, _share(cpu_seconds, len(distinct)), cpu_seconds)
    late: dict[int, Timeout] = {number: "gold" for number, gold in golds.items() if one_of[json.dumps(gold)] not in in_time}
    again = {number: row for number, row in rows.items() if number not in scores and number not in late}
    bound = _share(cpu_seconds, len(again))
    if bound > FIRST_SECONDS:
        scores |= WORKERS.judge(again, bound, cpu_seconds)
    return scores, late | dict.fromkeys(again.keys() - scores.keys(), "completion")


def _share(cpu_seconds: float, number: int) -> float:
    """Return the bound of each of so many late rows."""
    return cpu_seconds * min(1.0, FULL_BOUNDS / max(number, 1))


class _Worker:
    """One process."""

    def __init__(self, judges: Iterable[str]) -> None:
        """Begin to start it; the imports of `judges` take place beside what is done here."""
        path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.connection, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), *judges],
            stdin=subprocess.DEVNULL,
            stdout=STANDARD_ERROR,  # what a library prints
            pass_fds=[theirs.fileno()],
            # One order of sets and dictionaries in every process: sympy's results may depend on it.
            env={**os.environ, **one_thread, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        )
        theirs.close()

    def ask(self, row: Row, cpu_seconds: float) -> None:
        """Send a row."""
        with contextlib.suppress(BrokenPipeError):  # it has died: reading from it says so
            self.connection.send_bytes(json.dumps({"row": row, "cpu_seconds": cpu_seconds}).encode())

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


class Workers:
    """The processes of this one: started at the first need, ended with it."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._workers: list[_Worker] = []
        self._judges: dict[str, None] = {}
        self._one_at_a_time = threading.Lock()

    def start(self, judges: Iterable[str], number: int = MAX_WORKERS) -> None:
        """Begin to start processes that are missing."""
        self._judges |= dict.fromkeys(judges)
        while len(self._workers) < min(number, MAX_WORKERS, len(os.sched_getaffinity(0))):
            self._workers.append(_Worker(self._judges))

    def judge(self, rows: Mapping[int, Row], cpu_seconds: float, full_cpu_seconds: float) -> dict[int, float | None]:
        """Return the scores of the rows that were judged in time, by the rows' numbers.

        Args:
            rows: to be judged.
            cpu_seconds: that each may take now.
            full_cpu_seconds: the bound of the reward function, by which the wall-clock backstop is measured.

        Raises:
            RewardError: a judge raised, a row sleeps, or a process cannot begin.
        """
        if not rows:
            return {}
        with self._one_at_a_time:
            try:
                return self._judged(rows, cpu_seconds, max(LEAST_WALL_SECONDS, WALL_FACTOR * full_cpu_seconds))
            except BaseException:  # an interrupt, too: a reply that comes late would be taken for the next one's
                self.close()
                raise

    def _judged(self, rows: Mapping[int, Row], cpu_seconds: float, wall_seconds: float) -> dict[int, float | None]:
        scores: dict[int, float | None] = {}
        busy: dict[Connection, tuple[_Worker, int, float]] = {}
        self.start((row[0] for row in rows.values()), 1 + len(rows) // ROWS_PER_WORKER)
        waiting, idle = deque(rows.items()), list(self._workers)
        while waiting or busy:
            while waiting and idle:
                worker, (number, row) = idle.pop(), waiting.popleft()
                worker.ask(row, cpu_seconds)
                busy[worker.connection] = worker, number, time.monotonic() + wall_seconds
            ready = wait(list(busy), 1.0)
            for connection in [one for one in busy if one in ready]:
                worker, number, _ = busy.pop(connection)
                reply, again = self._received(worker)
                idle.append(again)
                if "error" in reply:
                    raise RowError(number, f"failed: {reply['error']}")
                if "value" in reply:
                    scores[number] = reply["value"]
            for _, number, deadline in busy.values():
                if time.monotonic() > deadline:
                    raise RowError(number, f"gave no verdict within {wall_seconds:.0f} s of the clock: it does not compute")
        return scores

    def _received(self, worker: _Worker) -> tuple[dict[str, Any], _Worker]:
        """Return what a worker says of its row, and who judges the next one."""
        try:
            reply: dict[str, Any] = json.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            worker.end()
            if worker.process.returncode == 1:  # Python's own: it could not even import its judges
                raise RewardError(f"a process that judges completions ({MODULE}) ended; the log above says why") from None
            self._workers[self._workers.index(worker)] = another = _Worker(self._judges)
            return {}, another
        return reply, worker

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()


WORKERS = Workers()
"""Of this process: whatever judges shares them."""
atexit.register(WORKERS.close)
