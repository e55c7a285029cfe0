"""Task: train, in a process of its own."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.run.folder import RunDir
from grpo_core.run.process_state import ensure_ended
from grpo_core.training.process import MODULES
from tasks.process.child import run_child


@task(name="train", cache_policy=NO_CACHE)
def run_training_process(run_path: Path) -> None:
    """Run the training process to its end, from the newest checkpoint if there is one; a finished training stays as it is.

    Raises:
        TrainingError: it failed; the message says why.
    """
    from grpo_core.run.summary import run_status

    run_dir = RunDir(run_path)
    if run_status(run_dir).state == "finished":
        return
    training = run_dir.read_config().training
    run_child(MODULES[training.engine], [str(run_path)], run_dir.log_file("train"), training.python, run_dir.process_file)


def release_monitor(run_path: Path) -> None:
    """Let the monitor end although the training never began (its task failed or was cancelled before it started a process)."""
    ensure_ended(RunDir(run_path).process_file)
