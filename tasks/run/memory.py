"""What a run asks of this machine beside disk: printed before anything is started."""

from pathlib import Path

from grpo_core.run.folder import RunDir
from grpo_core.run.preflight import slow_dtype_warnings
from grpo_core.run.sizes import announce_memory
from tasks.run.progress import say


def say_slow_dtype(run_path: Path) -> None:
    """Print a warning where the run's dtype is slow on this processor."""
    for warning in slow_dtype_warnings(RunDir(run_path).read_config()):
        say(f"warning: {warning}")


def say_memory(run_path: Path, model: Path) -> None:
    """Print what the run takes beside its models: copies of checkpoints, a vLLM that it starts, and whether that is there.

    Args:
        run_path: its folder.
        model: folder of its initial policy.
    """
    announce_memory(RunDir(run_path), model, say)
