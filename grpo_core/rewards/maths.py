"""Mathematical equality with the gold answer, by math-verify, in processes of its own.

Parsing goes through sympy, which can take unbounded time and memory on hostile text, and math-verify's own time limit uses
signals, which only work in a main thread and cannot interrupt a long operation on integers. So every completion is judged in a
worker, without that limit and within a bound in CPU time (`bounded.py`). Model output is parsed as LaTeX or as a plain
expression by math-verify's grammar; it is not evaluated as Python.
"""

from typing import Any

from grpo_core.rewards.base import completion_text
from grpo_core.rewards.bounded import BoundedReward
from grpo_core.rewards.workers import Row

MAX_CHARACTERS = 4000
"""Only the last so many characters of a completion are parsed: the answer is at its end."""


def _rows(prompts: list[Any], completions: list[Any], answer: list[Any], **columns: Any) -> list[Row]:
    pairs = zip(answer, completions, strict=True)
    return [("math_answer", str(gold), completion_text(completion)[-MAX_CHARACTERS:]) for gold, completion in pairs]


def _gold_alone(row: Row) -> Row:
    name, gold, _ = row
    return name, gold, "$0$"  # parsing alone evaluates no power: a comparison does


math_answer = BoundedReward(rows=_rows, alone=_gold_alone, judges=("math_answer",))
"""1 where the last answer in the completion equals the gold answer, else 0; None where the gold cannot be parsed."""
