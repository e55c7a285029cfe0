"""reasoning-gym tasks: procedural prompts with a scorer of their own.

Only tasks on `ALLOWED_TASKS` are used. Some scorers of the package evaluate the answer as code (`eval`, sympy's parser); a
model's output must never reach those. Others reward wrong answers: `game_of_life_halting` gives every text 1,
`complex_arithmetic` gives it to `nan`; the closeness that `coin_flip` and `game_of_life` reward gives `0` 0.93 and an empty
board 0.96. The list holds the tasks whose whole module names nothing that evaluates text, whose rows, written as JSON and read
back, still give the gold answer the score 1, and whose scorer gives constants and the gold answers of other rows at most 0.6
on average. A contract test checks all three. Two tasks are graded exactly, but most of their gold answers are the same:
`circuit_logic` (61% are 0) and `syllogism` (70% are Yes).
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from grpo_core.config.names import ALLOWED_TASKS, MADE_ROWS
from grpo_core.errors import DataError, cause, name_of, shown


def gym_rows(task: str, task_args: dict[str, Any], size: int | None, seed: int) -> list[dict[str, Any]]:
    """Return rows with `question`, `answer` and `metadata` of a reasoning-gym task.

    Raises:
        DataError: the task is unknown or not allowed, or its arguments are refused by the task.
    """
    import reasoning_gym

    _check_allowed(task)
    try:
        dataset = reasoning_gym.create_dataset(task, seed=seed, size=size or MADE_ROWS, **task_args)
        # As the rows will read back from JSON, so that scoring sees the same before and after freezing.
        return [json.loads(json.dumps(dataset[index], default=str)) for index in range(len(dataset))]
    except Exception as error:  # a task's own code raises whatever its arguments lead to
        raise DataError(f"data.task_args {shown(task_args, 200)}: {task} refuses them: {cause(error)}") from error


def gym_score(task: str, answer: str, row: dict[str, Any]) -> float:
    """Return the task's own score of an answer, usually 0 to 1; an answer that its scorer cannot read scores 0.

    Raises:
        DataError: the task is unknown or not allowed.
    """
    scorer = task_scorer(task)
    try:
        return float(scorer(answer, row))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        # Some scorers parse an answer without guarding against text that is none. If the row's own answer fails as well,
        # the row is at fault and the error is for the user to see.
        scorer(row["answer"], row)
        return 0.0


@cache
def task_scorer(task: str) -> Callable[[str, dict[str, Any]], float]:
    """Return a task's scorer, made once: that builds a data set, a fifth of a second for those with a dictionary."""
    import reasoning_gym

    _check_allowed(task)
    return cast("Callable[[str, dict[str, Any]], float]", reasoning_gym.get_score_answer_fn(task))


def _check_allowed(task: str) -> None:
    if task not in ALLOWED_TASKS:
        raise DataError(
            f"data.source reasoning_gym:{name_of(task)}: not on the allow-list (its scorer may run model output as code or "
            f"rewards wrong answers, or is not known); allowed: {', '.join(sorted(ALLOWED_TASKS))}"
        )
