"""A worker (`grpo_core/rewards/bounded.py`) whose judges do what no judge should."""

import os
import sys
import time
from itertools import repeat
from multiprocessing.connection import Connection
from typing import Any

from grpo_core.rewards import bounded as worker


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
    worker.load_judge = HOSTILE.__getitem__
    worker.main(Connection(int(sys.argv[1])), sys.argv[2:])
