"""Reward functions whose completions are judged in processes of their own, each within a bound in CPU time.

Wall-clock time would make rewards depend on the machine's load. A completion that exceeds the bound scores 0: it must not pay
to hang.

Nearly every completion is judged in a millisecond, so all of them get FIRST_SECONDS, and those that are late begin again with
the whole bound. At most FULL_BOUNDS whole bounds are spent in a batch; where more are late, they share that time equally, so
that a batch in which everything hangs ends, too, and no completion depends on its place in the batch.

A verdict that comes of a measurement may differ the next time. So a batch's verdicts are journalled with its digest
(`Judgement`), and whoever judges the same batch again, in a resumed or a repeated run, takes them as they were given.

A process, `python -m grpo_core.rewards.bounded FD JUDGE...`, judges one completion after the other. It has neither torch nor
threads that compute. A timer of CPU time interrupts Python code; native code that does not come back is ended by the kernel, at
a bound of CPU seconds that moves with every row; memory has a bound of its own. A request and its reply are one JSON message
each, and a reply without a content says that the row exceeded a bound:

    {"row": [judge, argument, ...], "cpu_seconds": bound}
    {"value": score} | {} | {"error": text}
"""

import atexit
import contextlib
import hashlib
import json
import logging
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil

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
MODULE = "grpo_core.rewards.bounded"
STANDARD_ERROR = 2
MAX_WORKERS = 8
ROWS_PER_WORKER = 16
"""So few rows are not worth another process."""
MEMORY = 2**30
"""Bytes of address space that judging may take."""
NATIVE_SECONDS = 1.0
"""Of CPU time, beyond the bound, after which the kernel ends the process."""

Row = tuple[Any, ...]
"""The key of a judge (`load_judge`) and its arguments, as JSON can hold them."""
Judge = Callable[..., float | None]
"""Takes plain values; returns a score, or None where the completion cannot be scored."""
Verdicts = dict[tuple[str, str], Sequence[int]]
"""By name of a function and digest of a batch: which of its completions exceeded the bound."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdicts of one function on one batch, as far as its bound decided them."""

    fn: str
    """Name in metric keys."""
    batch: str
    """Digest of everything that was judged, and of the bound."""
    timeouts: Sequence[int]
    """Numbers in the batch, from 0, of the completions that exceeded the bound; of all others the function's verdict holds."""


def judged_json(judged: Sequence[Judgement]) -> dict[str, Any]:
    """Return what a record holds of judgements; nothing where no bound took part."""
    return {"judged": [asdict(judgement) for judgement in judged]} if judged else {}


def read_verdicts(records: Iterable[Mapping[str, Any]]) -> Verdicts:
    """Return what journal records (their `data`) hold of judgements; the first one of a batch counts."""
    found = [judged for data in records for judged in data.get("judged", ())]
    return {(judged["fn"], judged["batch"]): judged["timeouts"] for judged in reversed(found)}


@dataclass(frozen=True, kw_only=True)
class BoundedReward:
    """A reward function in TRL's signature that can also be asked for its rows, to judge them within another bound."""

    rows: Callable[..., list[Row]]
    """From `prompts`, `completions` and columns: what is judged, one row a completion."""
    judge: str
    """To be imported before the first completion is there."""

    def __call__(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        """Return the score of each completion, 0 where it exceeds the default bound."""
        return judge_batch(self.rows(prompts=prompts, completions=completions, **columns), CPU_SECONDS)[0]


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
    rows: Sequence[Row], cpu_seconds: float, given: Sequence[int] | None = None
) -> tuple[list[float | None], list[int]]:
    """Judge a batch.

    Args:
        rows: one a completion; equal ones are judged once.
        cpu_seconds: the bound of each.
        given: which rows exceeded the bound before; the others are then judged within a wider one.

    Returns:
        (scores, 0 of rows that exceeded the bound, None where the judge gives none; which rows those are)

    Raises:
        RewardError: a judge raised, a row sleeps, or a process cannot begin.
    """
    texts = [json.dumps(row) for row in rows]
    first = {text: number for number, text in reversed(list(enumerate(texts)))}
    wanted = {number: rows[number] for number in sorted(first.values()) if number not in (given or ())}
    if given is None:
        scores = WORKERS.judge(wanted, min(FIRST_SECONDS, cpu_seconds))
        late = {number: row for number, row in wanted.items() if number not in scores}
        bound = cpu_seconds * min(1.0, FULL_BOUNDS / max(len(late), 1))
        scores |= WORKERS.judge(late, bound) if bound > FIRST_SECONDS else {}
    else:
        scores = WORKERS.judge(wanted, REPEATED * cpu_seconds)
    timeouts = [number for number, text in enumerate(texts) if first[text] not in scores]
    return [scores.get(first[text], 0.0) for text in texts], timeouts


class Workers:
    """The processes of this one: started at the first need, ended with it."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._processes: dict[Connection, subprocess.Popen[bytes]] = {}
        self._judges: dict[str, None] = {}

    def start(self, judges: Iterable[str], number: int = MAX_WORKERS) -> None:
        """Begin to start processes that are missing; they import `judges` beside what is done here."""
        self._judges |= dict.fromkeys(judges)
        path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        while len(self._processes) < min(number, MAX_WORKERS, len(os.sched_getaffinity(0))):
            ours, theirs = Pipe()
            with theirs:
                self._processes[ours] = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), *self._judges],
                    stdin=subprocess.DEVNULL,
                    stdout=STANDARD_ERROR,  # what a library prints
                    pass_fds=[theirs.fileno()],
                    # One order of sets and dictionaries in every process: sympy's results may depend on it.
                    env={**os.environ, **one_thread, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
                )

    def judge(self, rows: Mapping[int, Row], cpu_seconds: float) -> dict[int, float | None]:
        """Return the scores of the rows that were judged in time, by the rows' numbers.

        Args:
            rows: to be judged.
            cpu_seconds: that each may take.

        Raises:
            RewardError: a judge raised, a row sleeps, or a process cannot begin.
        """
        try:
            return self._judged(rows, cpu_seconds)
        except BaseException:  # an interrupt, too: a reply that comes late would be taken for the next one's
            self.close()
            raise

    def _judged(self, rows: Mapping[int, Row], cpu_seconds: float) -> dict[int, float | None]:
        scores: dict[int, float | None] = {}
        waiting, busy = deque(rows.items()), dict[Connection, int]()
        patience = max(LEAST_WALL_SECONDS, WALL_FACTOR * cpu_seconds)
        while waiting or busy:
            self.start((row[0] for row in rows.values()), 1 + len(rows) // ROWS_PER_WORKER)
            for connection in [one for one in self._processes if one not in busy][: len(waiting)]:
                busy[connection], row = waiting.popleft()
                with contextlib.suppress(BrokenPipeError):  # it has died: reading from it says so
                    connection.send_bytes(json.dumps({"row": row, "cpu_seconds": cpu_seconds}).encode())
            ready = [one for one in wait(list(busy), patience) if isinstance(one, Connection)]
            if not ready:
                raise RowError(min(busy.values()), f"gave no verdict within {patience:g} s of the clock: it does not compute")
            for connection in ready:
                number, reply = busy.pop(connection), self._reply(connection)
                if "error" in reply:
                    raise RowError(number, f"failed: {reply['error']}")
                scores |= {number: reply["value"]} if reply else {}
        return scores

    def _reply(self, connection: Connection) -> dict[str, Any]:
        """Return what a worker says of its row; one that has died, which exceeded a bound, is there no more."""
        try:
            reply: dict[str, Any] = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            connection.close()
            if self._processes.pop(connection).wait() == 1:  # Python's own: it could not even import its judges
                raise RewardError(f"a process that judges completions ({MODULE}) ended; the log above says why") from None
            return {}
        return reply

    def close(self) -> None:
        """End the processes."""
        for connection, process in self._processes.items():
            process.kill()
            process.wait()
            connection.close()
        self._processes.clear()


WORKERS = Workers()
"""Of this process: whatever judges shares them."""
atexit.register(WORKERS.close)


# In such a process


def load_judge(key: str) -> Judge:
    """Return a judge with all that it makes at its first call, so that no completion pays for that.

    Args:
        key: `math_answer`, `format`, `vlm_r1`, or `reasoning_gym:<task>`; that without a task judges nothing, and is imported.
    """
    name, _, task = key.partition(":")
    if name == "vlm_r1":
        from grpo_core.rewards import vlm_r1

        vlm_r1.default("1", "2")
        return vlm_r1.judge
    if name == "format":
        return lambda pattern, text: float(re.compile(pattern, re.DOTALL).fullmatch(text) is not None)
    return _math_answer() if name == "math_answer" else _reasoning_gym(task)


def _math_answer() -> Judge:
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)

    def judge(gold: str, text: str) -> float | None:
        expected = parse(f"${gold}$", parsing_timeout=None)
        return float(verify(expected, parse(text, parsing_timeout=None), timeout_seconds=None)) if expected else None

    for gold in (r"\frac{1}{2}", r"x^2+2x+1", r"\{1,2\}", r"\begin{pmatrix}1&2\end{pmatrix}"):
        judge(gold, rf"\boxed{{{gold}}}")
    judge("x^2-1", r"\boxed{(x-1)(x+1)}")
    return judge


def _reasoning_gym(task: str) -> Judge:
    import reasoning_gym  # noqa: F401  (takes a second: beside the first rollout, where no task is known yet)

    from grpo_core.data.sources import gym_score, task_scorer

    if task:
        task_scorer(task)
    return partial(gym_score, task)


class Late(BaseException):
    """The bound is exceeded. No Exception, which a library might handle."""


def _raise_late(*_: object) -> None:
    raise Late


def judge_within(judge: Judge, arguments: Sequence[Any], cpu_seconds: float) -> dict[str, Any]:
    """Return the reply on one row."""
    end = time.process_time() + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(end + NATIVE_SECONDS), resource.RLIM_INFINITY))
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
            reply: dict[str, Any] = {"value": judge(*arguments)}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except (Late, MemoryError, RecursionError):
        return {}
    except Exception as error:  # noqa: BLE001  (whatever a judge raises is for the user to see)
        reply = {"error": f"{type(error).__name__}: {error}"}
    return reply if time.process_time() < end else {}  # what is raised may have been caught


def main(requests: Connection, keys: Sequence[str]) -> None:
    """Answer requests until there are no more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # for whoever started it, who finishes the step
        signal.signal(number, signal.SIG_IGN)
    judges = {key: load_judge(key) for key in keys}
    most = psutil.Process().memory_info().vms + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _raise_late)
    with contextlib.suppress(EOFError, OSError):  # who asks has ended
        while True:
            request = json.loads(requests.recv_bytes())
            key, *arguments = request["row"]
            judge = judges.get(key) or judges.setdefault(key, load_judge(key))
            requests.send_bytes(json.dumps(judge_within(judge, arguments, request["cpu_seconds"])).encode())


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), sys.argv[2:])
