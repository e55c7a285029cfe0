"""Rewards for the shape of a completion: its format and its length."""

import re
from typing import Any

from grpo_core.rewards.base import completion_text


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
