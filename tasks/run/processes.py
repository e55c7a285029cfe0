"""Tasks: evaluate a policy, and train, each in a process of its own."""

from pathlib import Path
from typing import Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.data.frozen import read_manifest
from grpo_core.evaluation.plan import is_evaluated
from grpo_core.evaluation.results import HELD_OUT
from grpo_core.evaluation.reuse import evaluated_once, evaluation_identity, keep_evaluation, use_kept
from grpo_core.policy.sources.find import resolve_model
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

    Nothing is done where nothing is held out (`data.eval_fraction: 0`), or where this policy has been evaluated before. An
    evaluation of the initial policy that an earlier run has made in all respects alike is taken over from there, except by a
    reproduction, which is to repeat it.
    """
    run_dir = RunDir(run_path)
    if read_manifest(run_dir.data).num_eval == 0 or is_evaluated(run_dir, policy, step):
        return
    identity = _identity(run_dir, set_name, step) if policy == "base" and not run_dir.original.exists() else None
    if identity is None:
        _evaluate(run_dir, policy, set_name, step)
        return
    with CancelWatch() as cancellation, evaluated_once(identity, cancellation.pause, say):
        if use_kept(run_dir, policy, identity):
            say(f"evaluation of {policy}: an earlier run has made the same one; its result is used again")
            return
        _evaluate(run_dir, policy, set_name, step)
        keep_evaluation(run_dir, policy, identity)


def _evaluate(run_dir: RunDir, policy: str, set_name: str, step: int) -> None:
    run_child(
        "grpo_core.evaluation",
        [str(run_dir.path), "--policy", policy, "--set", set_name, "--step", str(step)],
        run_dir.log_file(f"evaluate-{policy}"),
        run_dir.read_config().training.python,
    )


def _identity(run_dir: RunDir, set_name: str, step: int) -> str | None:
    model = run_dir.read_config().model
    folder = resolve_model(model.source, model.trust_remote_code)
    return evaluation_identity(run_dir, folder, cached_digest(folder), set_name, step)


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
