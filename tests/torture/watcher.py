"""The monitor as a process of its own, so that it can be killed alone: `python -m tests.torture.watcher RUN_DIR`."""

import sys
from pathlib import Path

from grpo_core.run.folder import RunDir
from tasks.run.monitoring import monitor
from tasks.tracking.store import read_tracked


def main() -> None:
    """Monitor a run until its training has ended and everything is shipped."""
    path = Path(sys.argv[1])
    monitor.fn(path, read_tracked(RunDir(path)))


if __name__ == "__main__":
    main()
