"""Built-in rewards of a few lines: the score of a reasoning-gym task, the exact answer, the format, the length."""

import re
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


def exact_answer(prompts: list[Any], completions: list[Any], answer: list[str], **columns: Any) -> list[float | None]:
    r"""Return 1 where the completion is the gold answer up to surrounding white space, else 0.

    >>> exact_answer(["3 + 4 ="], [" 7\n"], answer=["7"])
    [1.0]
    """
    return [
        float(completion_text(completion).strip() == gold.strip()) for completion, gold in zip(completions, answer, strict=True)
    ]


def format_reward(
    prompts: list[Any], completions: list[Any], pattern: str = r"<think>.*?</think>\s*<answer>.*?</answer>", **columns: Any
) -> list[float | None]:
    r"""Return 1 where the whole completion (stripped) matches the regular expression, else 0.

    >>> format_reward([""], ["42"], pattern=r"-?\d+")
    [1.0]
    """
    compiled = re.compile(pattern, re.DOTALL)
    return [float(compiled.fullmatch(completion_text(completion).strip()) is not None) for completion in completions]


def length_reward(prompts: list[Any], completions: list[Any], max_characters: int = 200, **columns: Any) -> list[float | None]:
    """Return 1 up to `max_characters` characters, then a straight fall to 0 at twice as many.

    >>> length_reward([""], ["abc"], max_characters=2)
    [0.5]
    """
    excess = [len(completion_text(completion)) - max_characters for completion in completions]
    return [min(1.0, max(0.0, 1 - characters / max_characters)) for characters in excess]
