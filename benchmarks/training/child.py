"""The process of one engine: `python -m benchmarks.training.child ENGINE FOLDER`, a step for each line that it reads."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import TextIO

from benchmarks.training.timed import TimedStep
from benchmarks.training.workload import WORKLOAD_FILE, Workload

ENGINES = {"native": "native_engine", "trl": "trl_engine", "trl-as-started": "trl_engine"}
"""Module of each engine; the last has the C library's own way to get memory, as `python train.py` has."""


class Pipe:
    """Turns that come through standard input; what was printed to standard output goes to standard error from now on."""

    def __init__(self) -> None:
        """Take the two ends."""
        self._answers: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def ready(self, settings: dict[str, object]) -> None:
        """See `Turns.ready`."""
        self._say(json.dumps(settings))

    def wait(self) -> None:
        """See `Turns.wait`; without a further turn the process ends."""
        if not sys.stdin.readline():
            sys.exit(0)

    def report(self, step: TimedStep) -> None:
        """See `Turns.report`."""
        self._say(step.as_json())

    def _say(self, line: str) -> None:
        self._answers.write(line + "\n")
        self._answers.flush()


def main() -> None:
    """Run the engine that the command line names on the workload in a folder."""
    from grpo_core.machine.hardware import avoid_broken_kernels

    engine, folder = sys.argv[1], Path(sys.argv[2])
    avoid_broken_kernels()
    workload = Workload.from_json((folder / WORKLOAD_FILE).read_text())
    importlib.import_module(f"benchmarks.training.{ENGINES[engine]}").run(workload, folder, Pipe())


if __name__ == "__main__":
    main()
