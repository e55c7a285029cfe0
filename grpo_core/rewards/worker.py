"""A process that judges one completion after the other within a bound: `python -m grpo_core.rewards.worker FD JUDGE...`.

It has neither torch nor threads that compute. A timer of CPU time interrupts Python code; native code that does not come back
is ended by the kernel, at a bound of CPU seconds that moves with every row; memory has a bound of its own. A request and its
reply are one JSON message each:

    {"row": [judge, argument, ...], "cpu_seconds": bound}
    {"value": score} | {"over": why} | {"error": text}
"""

import contextlib
import json
import math
import os
import resource
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grpo_core.machine.lifeline import exit_with_lifeline
from grpo_core.rewards.judges import Judge, load_judge

MEMORY = 2**30
"""Bytes of address space that judging may take."""
LOOK_SECONDS = 0.25
"""Of CPU time, between two looks at the clock and at who started this process; a library may have caught what was raised."""
NATIVE_SECONDS = 1.0
"""Of CPU time, beyond the bound, after which the kernel ends the process."""


class Late(BaseException):
    """The bound is exceeded. No Exception, which a library might handle."""


class _Clock:
    """The timer of the row that is judged."""

    is_on = is_over = False
    end = 0.0

    def __init__(self) -> None:
        self._parent = os.getppid()
        signal.signal(signal.SIGPROF, self._look)

    def start(self, cpu_seconds: float) -> None:
        self.end = time.process_time() + cpu_seconds
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(self.end + NATIVE_SECONDS), resource.RLIM_INFINITY))
        self.is_on, self.is_over = True, False
        look = min(LOOK_SECONDS, cpu_seconds)
        signal.setitimer(signal.ITIMER_PROF, look, look)

    def stop(self) -> None:
        self.is_on = False
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, *_: object) -> None:
        if os.getppid() != self._parent:  # a regular expression keeps the thread of the lifeline from running
            os._exit(1)
        if self.is_on and time.process_time() >= self.end:
            self.is_over = True
            raise Late


def _reply(clock: _Clock, judge: Judge, arguments: list[Any], cpu_seconds: float) -> dict[str, Any]:
    reply: dict[str, Any] = {"over": f"it took {cpu_seconds:g} s of CPU time"}
    try:
        clock.start(cpu_seconds)
        value = judge(*arguments)
        clock.stop()
        reply = reply if clock.is_over else {"value": value}
    except Late:
        pass
    except (MemoryError, RecursionError) as error:
        reply = {"over": f"{type(error).__name__} while it was judged"}
    except Exception as error:  # noqa: BLE001  (whatever a judge raises is for the user to see)
        reply = reply if clock.is_over else {"error": f"{type(error).__name__}: {error}"}
    finally:
        clock.stop()
    return reply


def main(requests: Connection, keys: list[str]) -> None:
    """Answer requests until there are no more."""
    judges = {key: load_judge(key) for key in keys}
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    clock = _Clock()
    with contextlib.suppress(EOFError, OSError):
        while True:
            request = json.loads(requests.recv_bytes())
            key, *arguments = request["row"]
            judge = judges.get(key) or judges.setdefault(key, load_judge(key))
            requests.send_bytes(json.dumps(_reply(clock, judge, arguments, request["cpu_seconds"])).encode())


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM):  # for whoever started it, who finishes the step
        signal.signal(_number, signal.SIG_IGN)
    exit_with_lifeline()
    main(Connection(int(sys.argv[1])), sys.argv[2:])
