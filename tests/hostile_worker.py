"""A worker (`grpo_core/rewards/worker.py`) whose judges do what no judge should."""

import os
import signal
import sys
import time
from itertools import repeat
from multiprocessing.connection import Connection
from typing import Any

from grpo_core.machine.lifeline import exit_with_lifeline
from grpo_core.rewards import judges, worker


def _nests() -> Any:
    return _nests()


HOSTILE: dict[str, Any] = {
    "sleeps": lambda: time.sleep(3600),
    "allocates": lambda: len(bytes(2 << 30)),
    "nests": _nests,
    "dies": os.abort,
    "raises": lambda: 1 / 0,
    "spins": lambda: sum(1 for _ in repeat(1)),
    "holds": lambda: sum(repeat(1)),
    "prints": lambda: sys.stdout.write("[]") and 0.5,
}

if __name__ == "__main__":
    judges._LOADERS |= {name: lambda _, judge=judge: judge for name, judge in HOSTILE.items()}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_lifeline()
    worker.main(Connection(int(sys.argv[1])), sys.argv[2:])
