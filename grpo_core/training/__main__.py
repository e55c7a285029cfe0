"""The training process: `python -m grpo_core.training RUN_DIR`; see `process.py`."""

import sys
from collections.abc import Sequence

from grpo_core.training.process import Train, run


def _load() -> Train:
    from grpo_core.training.loop import run_steps

    return run_steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a RUN_DIR with this project's own loop; return the exit code."""
    return run("native", _load, arguments)


if __name__ == "__main__":
    sys.exit(main())
