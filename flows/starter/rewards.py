"""Reward functions of this experiment. Each is named in config.yaml, under `rewards`.

A reward function gets a batch of completions and returns a number for each: the higher, the better; None where a completion
cannot be scored. Columns of the data arrive by name, one value a completion: `answer` is that of each completion's prompt.
"""

import re
from typing import Any


def right_answer(prompts: list[Any], completions: list[Any], answer: list[Any], **columns: list[Any]) -> list[float]:
    """Return 1 for a completion that ends with the answer, 0 for any other; with a chat template each is a list of messages."""
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [float(ends_with(text, str(gold))) for text, gold in zip(texts, answer, strict=True)]


def ends_with(text: str, gold: str) -> bool:
    """Return whether the last words of a text are the gold answer: 15 does not end with 5, nor -5."""
    return re.search(rf"(?<![\w.-]){re.escape(gold.strip(' .'))}$", text.strip(" .\n")) is not None


def right_number(prompts: list[str], completions: list[str], answer: list[str], **columns: list[object]) -> list[float]:
    """Return 1 for a completion that is the right number and nothing else, 0 for any other."""
    return [float(completion.strip() == number) for completion, number in zip(completions, answer, strict=True)]


def only_a_number(prompts: list[str], completions: list[str], **columns: list[object]) -> list[float]:
    """Return 1 for a completion that is a number, right or wrong, 0 for any other."""
    return [float(completion.strip().lstrip("-").isdecimal()) for completion in completions]
