"""What judges one completion, in a worker process: its cost has no bound of its own (a parser, a regular expression, a task).

A judge takes plain values and returns a score, or None where the completion cannot be scored. Nothing here imports torch.
"""

import logging
import re
from collections.abc import Callable
from typing import Any

Judge = Callable[..., float | None]


def load_judge(key: str) -> Judge:
    """Return a judge with all that it makes at its first call, so that no completion pays for that.

    Args:
        key: `math_answer`, `format`, or `reasoning_gym:<task>`; the latter without a task judges nothing, and is imported.
    """
    name, _, of = key.partition(":")
    return _LOADERS[name](of)


def _math_answer(_: str) -> Judge:
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    from math_verify import parse, verify

    def judge(gold: str, text: str) -> float | None:
        expected = parse(f"${gold}$", parsing_timeout=None)
        return float(verify(expected, parse(text, parsing_timeout=None), timeout_seconds=None)) if expected else None

    for gold in (r"\frac{1}{2}", r"x^2+2x+1", r"\{1,2\}", r"\begin{pmatrix}1&2\end{pmatrix}"):
        judge(gold, rf"\boxed{{{gold}}}")
    judge("x^2-1", r"\boxed{(x-1)(x+1)}")
    return judge


def _format(_: str) -> Judge:
    def judge(pattern: str, text: str) -> float:
        return float(re.compile(pattern, re.DOTALL).fullmatch(text) is not None)

    return judge


def _reasoning_gym(task: str) -> Judge:
    import reasoning_gym  # noqa: F401  (takes a second: beside the first rollout, where no task is known yet)

    from grpo_core.data.sources import gym_score, task_scorer

    if task:
        task_scorer(task)

    def judge(text: str, row: dict[str, Any]) -> float:
        return gym_score(task, text, row)

    return judge


_LOADERS: dict[str, Callable[[str], Judge]] = {
    "format": _format,
    "math_answer": _math_answer,
    "reasoning_gym": _reasoning_gym,
}
