"""The completions of a step as a table."""

from pathlib import Path

import pandas

from grpo_core.machine.disk import whole_or_gone
from grpo_core.training.batch import TrainingBatch


def write_completions(folder: Path, step: int, batch: TrainingBatch) -> Path:
    """Write `folder`/step_NNNNNN.parquet, one row a completion, and return its path.

    Raises:
        DiskFullError: the disk is full; nothing of the table is left.
    """
    rollouts, size = batch.rollouts, batch.rollouts.group_size
    table = pandas.DataFrame(
        {
            "step": step,
            "prompt_id": [prompt.id for prompt in rollouts.prompts for _ in range(size)],
            "completion_index": [index for _ in rollouts.prompts for index in range(size)],
            "prompt": [prompt.text for prompt in rollouts.prompts for _ in range(size)],
            "completion": list(rollouts.texts),
            "reward": rollouts.rewards.tolist(),
            **{f"reward_{name}": values.tolist() for name, values in rollouts.rewards_by_function.items()},
            "advantage": batch.advantages.tolist(),
            "tokens": rollouts.lengths().tolist(),
            "truncated": rollouts.truncated.tolist(),
            "weights": rollouts.weights,
        }
    )
    path = folder / f"step_{step:06d}.parquet"
    partial = path.with_suffix(".partial")
    with whole_or_gone(f"the completions of step {step}", partial):
        folder.mkdir(parents=True, exist_ok=True)
        table.to_parquet(partial, index=False)
        partial.replace(path)
    return path
