"""Exact match with the gold answer."""

from typing import Any

from grpo_core.rewards.base import completion_text


def exact_answer(prompts: list[Any], completions: list[Any], answer: list[str], **columns: Any) -> list[float | None]:
    r"""Return 1 where the completion is the gold answer up to surrounding white space, else 0.

    >>> exact_answer(["3 + 4 ="], [" 7\n"], answer=["7"])
    [1.0]
    """
    return [
        float(completion_text(completion).strip() == gold.strip()) for completion, gold in zip(completions, answer, strict=True)
    ]
