"""Runs that are as small as they may be, and what starts them."""

from typing import Any

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
