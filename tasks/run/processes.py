"""Tasks: evaluate a policy, and train, each in a process of its own.

The training process of the native engine also evaluates the policy that it ends with, which it has in memory; the task of that
evaluation finds it made, and makes it where it is not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import TrainingError
from grpo_core.evaluation.held_out import MODULE, evaluate_if_needed, was_cut_short
from grpo_core.evaluation.results import HELD_OUT
from grpo_core.run.child import ensure_ended
from grpo_core.run.folder import RunDir
from grpo_core.run.rules import RunRules
from grpo_core.training import EVALUATE, TRAINING
from tasks.process.cancellation import CancelWatch
from tasks.process.child import run_child
from tasks.run.inputs import cached_digest
from tasks.run.monitoring import announce_alone
from tasks.run.progress import say


@task(name="evaluate", task_run_name="evaluate-{policy}", cache_policy=NO_CACHE)
def evaluate_policy(run_path: Path, policy: Literal["base", "final"], set_name: str = HELD_OUT, step: int = 0) -> None:
    """Evaluate the initial policy (saved after `step`) or the newest checkpoint's on the held-out prompts.

    As `evaluate_if_needed`, in a process of its own.
    """
    run_dir = RunDir(run_path)

    def evaluate(arguments: Sequence[str], log_file: Path) -> None:
        rules = RunRules(run_dir)

        def silent(seconds: float) -> None:
            for alert in rules.check_silence(seconds, policy):
                announce_alone(alert, run_dir)

        python = run_dir.read_config().training.python
        run_child(MODULE, arguments, log_file, python, silent=silent)

    with CancelWatch() as cancellation:
        evaluate_if_needed(
            run_dir, policy, set_name, step, evaluate=evaluate, digest=cached_digest, wait=cancellation.pause, report=say
        )


@task(name="train", cache_policy=NO_CACHE)
def run_training_process(run_path: Path) -> None:
    """Run the training process to its end, from the newest checkpoint if there is one; a finished training stays as it is.

    One that is killed while it evaluates its last policy has trained to its end.

    Raises:
        TrainingError: it failed; the message says why.
    """
    from grpo_core.run.summary import run_status

    run_dir = RunDir(run_path)
    if run_status(run_dir).state == "finished":
        return
    training = run_dir.read_config().training
    try:
        run_child(TRAINING, [str(run_path), EVALUATE], run_dir.log_file("train"), training.python, run_dir.process_file)
    except TrainingError as error:
        if not was_cut_short(run_dir):
            raise
        say(f"evaluation of final: {error}; it is made again")


def release_monitor(run_path: Path) -> None:
    """Let the monitor end although the training never began (its task failed or was cancelled before it started a process)."""
    ensure_ended(RunDir(run_path).process_file)
