"""Task: evaluate a policy, in a process of its own."""

from pathlib import Path
from typing import Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.evaluation.results import HELD_OUT
from grpo_core.run.folder import RunDir
from tasks.process.cancellation import CancelWatch
from tasks.process.child import run_child
from tasks.run.model import cached_digest
from tasks.run.progress import say


@task(name="evaluate", task_run_name="evaluate-{policy}", cache_policy=NO_CACHE)
def evaluate_policy(run_path: Path, policy: Literal["base", "final"], set_name: str = HELD_OUT, step: int = 0) -> None:
    """Evaluate the initial policy (saved after `step`) or the newest checkpoint's on the held-out prompts.

    Nothing is done where nothing is held out (`data.eval_fraction: 0`), or where this policy has been evaluated before. An
    evaluation of the initial policy that an earlier run has made in all respects alike is taken over from there, except by a
    reproduction, which is to repeat it.
    """
    from grpo_core.data.frozen import read_manifest
    from grpo_core.evaluation.plan import is_evaluated
    from grpo_core.evaluation.reuse import evaluated_once, keep_evaluation, use_kept

    run_dir = RunDir(run_path)
    if read_manifest(run_dir.data).num_eval == 0 or is_evaluated(run_dir, policy, step):
        return
    is_shared = policy == "base" and not run_dir.original.exists()
    identity = _identity(run_dir, set_name, step) if is_shared else None
    if identity is None:
        _run(run_dir, policy, set_name, step)
        return
    with CancelWatch() as cancellation, evaluated_once(identity, cancellation.pause, say):
        if use_kept(run_dir, policy, identity):
            say(f"evaluation of {policy}: an earlier run has made the same one; its result is used again")
            return
        _run(run_dir, policy, set_name, step)
        keep_evaluation(run_dir, policy, identity)


def _run(run_dir: RunDir, policy: str, set_name: str, step: int) -> None:
    python = run_dir.read_config().training.python
    arguments = [str(run_dir.path), "--policy", policy, "--set", set_name, "--step", str(step)]
    run_child("grpo_core.evaluation", arguments, run_dir.log_file(f"evaluate-{policy}"), python)


def _identity(run_dir: RunDir, set_name: str, step: int) -> str | None:
    from grpo_core.evaluation.reuse import evaluation_identity
    from grpo_core.policy.sources.find import resolve_model

    config = run_dir.read_config()
    folder = resolve_model(config.model.source, config.model.trust_remote_code)
    return evaluation_identity(run_dir, folder, cached_digest(folder), set_name, step)
