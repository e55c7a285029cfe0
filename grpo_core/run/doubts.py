"""What is allowed of a run's data and functions, and seldom meant: warnings before its start."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from grpo_core.config import RuleConfig, RunConfig
from grpo_core.rewards.maths import MAX_CHARACTERS
from grpo_core.types import Prompt


def doubtful_answers(prompts: Sequence[Prompt], config: RunConfig) -> Iterator[str]:
    """Yield what is doubtful about gold answers.

    Args:
        prompts: with their columns.
        config: of the run.
    """
    if config.data.answer_column is None:
        return
    key, answers = f"data.answer_column {config.data.answer_column!r}", defaultdict[str, set[str]](set)
    for prompt in prompts:
        answers[repr(prompt.content)].add(str(prompt.columns["answer"]))
    if several := sum(len(found) > 1 for found in answers.values()):
        yield f"{key}: {several} prompt(s) have several gold answers; each row is judged by its own, so no completion suits all"
    is_maths = any(reward.fn == "math_answer" for reward in config.rewards)
    long = [prompt.id for prompt in prompts if is_maths and len(str(prompt.columns["answer"])) > MAX_CHARACTERS]
    if long:
        yield (
            f"{key}: {len(long)} gold answer(s) have more than {MAX_CHARACTERS} characters, the first is row {long[0]}; "
            f"math_answer reads the last {MAX_CHARACTERS} of a completion"
        )


def why_not_callable(function: Callable[..., object], rule: RuleConfig) -> str | None:
    """Return why a function cannot be called as a custom rule; None where it can, or does not say."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C
        return None
    try:
        signature.bind([], **rule.options)
    except TypeError as error:
        options = "".join(f", {name}=..." for name in rule.options)
        return f"cannot be called as f(history{options}): {error}"
    return None
