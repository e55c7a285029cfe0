"""The score that a reasoning-gym task itself gives."""

from typing import Any

from grpo_core.data.gym import gym_score
from grpo_core.rewards.base import completion_text


def reasoning_gym(
    prompts: list[Any], completions: list[Any], answer: list[str], metadata: list[dict[str, Any]], **columns: Any
) -> list[float | None]:
    """Return each task's score of the completion, stripped of surrounding white space.

    The task is the one that made the row (`metadata["source_dataset"]`), so mixed data sets are scored row by row.
    """
    return [
        gym_score(facts["source_dataset"], completion_text(completion).strip(), {"answer": gold, "metadata": facts})
        for completion, gold, facts in zip(completions, answer, metadata, strict=True)
    ]
