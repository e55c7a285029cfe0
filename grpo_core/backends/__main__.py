"""A training on another engine: `python -m grpo_core.backends RUN_DIR`; see `training/process.py`."""

import sys
from collections.abc import Sequence

from grpo_core.training.process import Train, run


def _load() -> Train:
    from grpo_core.backends.trl import train

    return train


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a RUN_DIR on TRL; return the exit code."""
    return run("trl", _load, arguments)


if __name__ == "__main__":
    sys.exit(main())
