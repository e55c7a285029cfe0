"""A process that judges one completion after the other within a bound: `python -m grpo_core.rewards.worker FD JUDGE...`.

It has neither torch nor threads that compute. A timer of CPU time interrupts Python code; native code that does not come back
is ended by the kernel, at a bound of CPU seconds that moves with every row; memory has a bound of its own. A request and its
reply are one JSON message each, and a reply without a content says that the row exceeded a bound:

    {"row": [judge, argument, ...], "cpu_seconds": bound}
    {"value": score} | {} | {"error": text}
"""

import contextlib
import json
import logging
import math
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Judge = Callable[..., float | None]
"""Takes plain values; returns a score, or None where the completion cannot be scored."""
MEMORY = 2**30
"""Bytes of address space that judging may take."""
LOOK_SECONDS = 0.25
"""Of CPU time, between two looks at the clock and at whether who started this process is still there."""
NATIVE_SECONDS = 1.0
"""Of CPU time, beyond the bound, after which the kernel ends the process."""


def load_judge(key: str) -> Judge:
    """Return a judge with all that it makes at its first call, so that no completion pays for that.

    Args:
        key: `math_answer`, `format`, or `reasoning_gym:<task>`; the latter without a task judges nothing, and is imported.
    """
    name, _, task = key.partition(":")
    if name == "format":
        return _matches
    return _math_answer() if name == "math_answer" else _reasoning_gym(task)


def _matches(pattern: str, text: str) -> float:
    return float(re.compile(pattern, re.DOTALL).fullmatch(text) is not None)


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
    return lambda text, row: gym_score(task, text, row)


class Late(BaseException):
    """The bound is exceeded. No Exception, which a library might handle."""


class _Bound:
    """The bound of the row that is judged."""

    def __init__(self) -> None:
        self.end, self.is_over, self._parent = math.inf, False, os.getppid()
        signal.signal(signal.SIGPROF, self._look)

    def start(self, cpu_seconds: float) -> None:
        self.end, self.is_over = time.process_time() + cpu_seconds, False
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(self.end + NATIVE_SECONDS), resource.RLIM_INFINITY))
        look = min(LOOK_SECONDS, cpu_seconds)
        signal.setitimer(signal.ITIMER_PROF, look, look)

    def _look(self, *_: object) -> None:
        if os.getppid() != self._parent:
            os._exit(1)
        if time.process_time() >= self.end and not self.is_over:
            self.is_over = True  # raised once: what catches it is ended by the kernel
            raise Late


def _reply(bound: _Bound, judge: Judge, arguments: list[Any], cpu_seconds: float) -> dict[str, Any]:
    reply: dict[str, Any] = {}
    try:
        try:
            bound.start(cpu_seconds)
            reply = {"value": judge(*arguments)}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except (Late, MemoryError, RecursionError):
        return {}
    except Exception as error:  # noqa: BLE001  (whatever a judge raises is for the user to see)
        reply = {"error": f"{type(error).__name__}: {error}"}
    return {} if bound.is_over else reply


def main(requests: Connection, keys: list[str]) -> None:
    """Answer requests until there are no more."""
    judges = {key: load_judge(key) for key in keys}
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bound = _Bound()
    with contextlib.suppress(EOFError, OSError):  # who asks has ended
        while True:
            request = json.loads(requests.recv_bytes())
            key, *arguments = request["row"]
            judge = judges.get(key) or judges.setdefault(key, load_judge(key))
            requests.send_bytes(json.dumps(_reply(bound, judge, arguments, request["cpu_seconds"])).encode())


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM):  # for whoever started it, who finishes the step
        signal.signal(_number, signal.SIG_IGN)
    main(Connection(int(sys.argv[1])), sys.argv[2:])
