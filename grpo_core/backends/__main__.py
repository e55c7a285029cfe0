"""A training on another engine: `python -m grpo_core.backends RUN_DIR`; see `training/process.py`."""

import importlib.util
import os
import sys
from collections.abc import Sequence

from grpo_core.errors import ConfigError
from grpo_core.training.process import Train, run

ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",  # its trainer reports itself when it is made
    "CUDA_VISIBLE_DEVICES": "0",  # one training, one GPU; with several in sight it refuses to start
}
"""Set before the engine is imported; what the user has set stays."""


def _load() -> Train:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("trl") is None:
        raise ConfigError("training.engine: trl needs the package trl; install it with pip install 'grpo-flow[trl]'")
    from grpo_core.backends.trl import train_on_trl

    return train_on_trl


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a RUN_DIR on TRL; return the exit code."""
    return run("trl", _load, arguments)


if __name__ == "__main__":
    sys.exit(main())
