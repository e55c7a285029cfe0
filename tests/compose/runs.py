"""Runs and sweeps that are as small as they may be, and what starts them."""

import json
from typing import Any

from grpo_core.run.folder import RunDir
from tests.compose.evidence import run_dir_of, volume
from tests.compose.stack import ComposeStack

TINY = {
    "data.eval_fraction": 0.0,
    "rollout.num_prompts_per_step": 8,
    "rollout.group_size": 4,
    "training.checkpoint_every": 2,
    "training.completions_every": 1,
    "tracking.log_policy": False,
}
SLOW = TINY | {"rollout.num_prompts_per_step": 128, "rollout.group_size": 8}
"""A step takes about half a second: long enough to be met in the middle."""


def start_tiny(stack: ComposeStack, name: str, *tags: str, steps: int = 4, slow: bool = False, **more: Any) -> str:
    """Start a run of the tiny model in `runs/NAME`; return the id of its flow run."""
    overrides = {**(SLOW if slow else TINY), "training.steps": steps, **more}
    return stack.start_run("grpo/train", *tags, config="sums_tiny_cpu", overrides=overrides, run_dir=f"runs/{name}")


def start_sweep(stack: ComposeStack, name: str, axes: dict[str, list[Any]], *, where: str, steps: int, **more: Any) -> str:
    """Start a sweep of the tiny model in `runs/NAME`; return the id of its flow run.

    Args:
        stack: where.
        name: of its folder.
        axes: of the sweep.
        where: its trainings are runs of their own (`deployment`), or processes of the sweep (`local`).
        steps: of each run.
        more: of the sweep's file: `seeds`, `overrides` in the place of the tiny ones.
    """
    overrides = {**more.pop("overrides", TINY), "training.steps": steps}
    objective, runs = {"metric": "reward/mean"}, {"where": where, "concurrency": 4}
    sweep = {"base": "sums_tiny_cpu", "overrides": overrides, "axes": axes, "objective": objective, "runs": runs, **more}
    stack.run_in("sweep-worker", "sh", "-c", f"cat > /app/runs/{name}.yaml", stdin=json.dumps(sweep))
    return stack.start_run("grpo-sweep/sweep", sweep=f"runs/{name}.yaml", sweep_dir=f"runs/{name}")


def runs_of_sweep(stack: ComposeStack, name: str) -> list[RunDir]:
    root = volume(stack, "runs")
    return [
        run_dir_of(stack, str(path.relative_to(root))) for path in sorted((root / name / "runs").iterdir()) if path.is_dir()
    ]
