"""Tasks: evaluate a policy, and train, each in a process of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.evaluation.once import MODULE, evaluate_if_needed
from grpo_core.evaluation.results import HELD_OUT
from grpo_core.run.folder import RunDir
from grpo_core.run.process_state import ensure_ended
from grpo_core.training.process import MODULES
from tasks.process.cancellation import CancelWatch
from tasks.process.child import run_child
from tasks.run.inputs import cached_digest
from tasks.run.progress import say


@task(name="evaluate", task_run_name="evaluate-{policy}", cache_policy=NO_CACHE)
def evaluate_policy(run_path: Path, policy: Literal["base", "final"], set_name: str = HELD_OUT, step: int = 0) -> None:
    """Evaluate the initial policy (saved after `step`) or the newest checkpoint's on the held-out prompts.

    As `evaluate_if_needed`; each in a process of its own.
    """
    run_dir = RunDir(run_path)

    def evaluate(arguments: Sequence[str], log_file: Path) -> None:
        run_child(MODULE, arguments, log_file, run_dir.read_config().training.python)

    with CancelWatch() as cancellation:
        evaluate_if_needed(
            run_dir, policy, set_name, step, evaluate=evaluate, digest=cached_digest, wait=cancellation.pause, report=say
        )


@task(name="train", cache_policy=NO_CACHE)
def run_training_process(run_path: Path) -> None:
    """Run the training process to its end, from the newest checkpoint if there is one; a finished training stays as it is.

    Raises:
        TrainingError: it failed; the message says why.
    """
    from grpo_core.run.summary import run_status

    run_dir = RunDir(run_path)
    if run_status(run_dir).state != "finished":
        training = run_dir.read_config().training
        run_child(MODULES[training.engine], [str(run_path)], run_dir.log_file("train"), training.python, run_dir.process_file)


def release_monitor(run_path: Path) -> None:
    """Let the monitor end although the training never began (its task failed or was cancelled before it started a process)."""
    ensure_ended(RunDir(run_path).process_file)
