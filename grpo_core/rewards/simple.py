"""Built-in rewards: mathematical equality, the score of a reasoning-gym task, the exact answer, the format, the length."""

import re
from typing import Any

from grpo_core.rewards.base import completion_text
from grpo_core.rewards.bounded import BoundedReward, Row

MAX_CHARACTERS = 4000
"""Only the last so many characters of a completion are parsed by `math_answer`: the answer is at its end."""
FORMAT = r"<think>.*?</think>\s*<answer>.*?</answer>"


def _math_rows(prompts: list[Any], completions: list[Any], answer: list[Any], **columns: Any) -> list[Row]:
    return [
        ("math_answer", str(gold), completion_text(completion)[-MAX_CHARACTERS:])
        for gold, completion in zip(answer, completions, strict=True)
    ]


math_answer = BoundedReward(rows=_math_rows, judge="math_answer")
"""1 where the last answer in the completion equals the gold answer, else 0; None where the gold cannot be parsed.

math-verify parses a model's text as LaTeX or as a plain expression by its grammar; it is not evaluated as Python. Its own time
limit, which needs a main thread and cannot interrupt a long operation on integers, is off.
"""


def _gym_rows(
    prompts: list[Any], completions: list[Any], answer: list[Any], metadata: list[dict[str, Any]], **columns: Any
) -> list[Row]:
    return [
        (
            f"reasoning_gym:{facts['source_dataset']}",
            completion_text(completion).strip(),
            {"answer": str(gold), "metadata": facts},
        )
        for completion, gold, facts in zip(completions, answer, metadata, strict=True)
    ]


reasoning_gym = BoundedReward(rows=_gym_rows, judge="reasoning_gym")
"""Each task's score of the completion, stripped of surrounding white space.

The task is the one that made the row (`metadata["source_dataset"]`), so mixed data sets are scored row by row.
"""


def exact_answer(prompts: list[Any], completions: list[Any], answer: list[Any], **columns: Any) -> list[float | None]:
    r"""Return 1 where the completion is the gold answer up to surrounding white space, else 0.

    >>> exact_answer(["3 + 4 ="], [" 7\n"], answer=["7"])
    [1.0]
    """
    return [
        float(completion_text(completion).strip() == str(gold).strip())
        for completion, gold in zip(completions, answer, strict=True)
    ]


def _format_rows(prompts: list[Any], completions: list[Any], pattern: str = FORMAT, **columns: Any) -> list[Row]:
    re.compile(pattern)  # one that is none is the configuration's fault, whatever the completions are
    return [("format", pattern, completion_text(completion).strip()) for completion in completions]


format_reward = BoundedReward(rows=_format_rows, judge="format")
"""1 where the whole completion (stripped) matches the regular expression `pattern`, else 0."""


def length_reward(prompts: list[Any], completions: list[Any], max_characters: int = 200, **columns: Any) -> list[float | None]:
    """Return 1 up to `max_characters` characters, then a straight fall to 0 at twice as many.

    >>> length_reward([""], ["abc"], max_characters=2)
    [0.5]
    """
    excess = [len(completion_text(completion)) - max_characters for completion in completions]
    return [min(1.0, max(0.0, 1 - characters / max_characters)) for characters in excess]
