"""Task: evaluate a policy, in a process of its own."""

from pathlib import Path
from typing import Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.evaluation.sets import HELD_OUT
from grpo_core.rundir import RunDir
from tasks.process import run_child


@task(name="evaluate", task_run_name="evaluate-{policy}", cache_policy=NO_CACHE)
def evaluate(run_path: Path, policy: Literal["base", "final"], set_name: str = HELD_OUT, step: int = 0) -> None:
    """Evaluate the initial policy (saved after `step`) or the newest checkpoint's on the held-out prompts.

    Nothing is done where nothing is held out (`data.eval_fraction: 0`), or where this policy has been evaluated before.
    """
    from grpo_core.data.frozen import read_manifest
    from grpo_core.evaluation.subject import is_evaluated

    run_dir = RunDir(run_path)
    if read_manifest(run_dir.data).num_eval == 0 or is_evaluated(run_dir, policy, step):
        return
    python = run_dir.read_config().training.python
    arguments = [str(run_path), "--policy", policy, "--set", set_name, "--step", str(step)]
    run_child("grpo_core.evaluation", arguments, run_dir.log_file(f"evaluate-{policy}"), python)
