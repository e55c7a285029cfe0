"""The process of one engine: `python -m benchmarks.training.child ENGINE FOLDER`, a step for each line that it reads."""

import importlib
import sys
from pathlib import Path

from benchmarks.training.timed import Turns
from benchmarks.training.workload import WORKLOAD_FILE, Workload

ENGINES = {"native": "native_engine", "native-as-trl": "native_engine", "trl": "trl_engine", "trl-as-started": "trl_engine"}
"""Module of each engine; the second does no more than TRL does, the last has the C library's own way to get memory."""


def main() -> None:
    """Run the engine that the command line names on the workload in a folder."""
    from grpo_core.machine.hardware import avoid_broken_kernels

    engine, folder = sys.argv[1], Path(sys.argv[2])
    avoid_broken_kernels()
    workload = Workload.from_json((folder / WORKLOAD_FILE).read_text())
    importlib.import_module(f"benchmarks.training.{ENGINES[engine]}").run(engine, workload, folder, Turns())


if __name__ == "__main__":
    main()
