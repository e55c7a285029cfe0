"""What raw rows must hold before anything is made of them: their columns, and gold answers that are some."""

from collections.abc import Sequence
from typing import Any

from grpo_core.config import DataConfig
from grpo_core.data.sources import Row
from grpo_core.errors import DataError, few_names, shown

RESERVED = ("completion_ids", "completions", "log_extra", "log_metric", "prompts", "trainer_state")
"""Arguments by which TRL and this project hand a reward function what is not a column."""


def check_rows(rows: Sequence[Row], config: DataConfig) -> None:
    """Refuse rows whose columns or gold answers cannot be used, before they are tokenized.

    Raises:
        DataError: a column is missing, has the name of an argument of reward functions, or gold answers are empty, lists or
            mappings.
    """
    for key, column in (("prompt_column", config.prompt_column), ("answer_column", config.answer_column)):
        if column is not None and column not in rows[0] and (key == "prompt_column" or gold_at(rows[0], column) is None):
            raise DataError(
                f"data.{key}: no column {shown(column)} in {config.source}; it has {shown(list(rows[0]), 300)[1:-1]}"
            )
    handed_on = {name for row in rows for name in row} - {config.prompt_column, config.answer_column}
    if taken := sorted(handed_on & set(RESERVED)):
        raise DataError(
            f"data.source {config.source}: a column is called {few_names(taken, 4)}, as an argument of reward functions is, to "
            "which columns are given by name; rename it, or make it data.prompt_column"
        )
    _check_answers(rows, config)


def _check_answers(rows: Sequence[Row], config: DataConfig) -> None:
    """Refuse gold answers that no completion can be equal to, and empty ones: with one, saying nothing is right."""
    if config.answer_column is None:
        return
    column, golds = f"data.answer_column {config.answer_column!r}", [gold_at(row, config.answer_column) for row in rows]
    for index, gold in enumerate(golds):
        if isinstance(gold, dict | list):
            paths = [f"{config.answer_column}.{key}" for key in gold] if isinstance(gold, dict) else []
            inside = f"name what is inside ({few_names(paths, 8)}), or " if paths else ""
            raise DataError(
                f"{column}: row {index} holds {shown(gold)}, a {type(gold).__name__}, and a gold answer is text, a number or a "
                f"truth value; {inside}set data.answer_column=null and read the column by its name in your reward function"
            )
    empty = [index for index, gold in enumerate(golds) if is_empty(gold)]
    if empty and not config.source.startswith("reasoning_gym:"):  # to some of its tasks "" is the answer
        raise DataError(
            f"{column}: is empty in {len(empty)} of {len(rows)} rows, the first is row "
            f"{empty[0]}; remove these rows, or set data.answer_column=null where rewards need no gold answer"
        )


def gold_at(row: Row, column: str) -> Any:
    """Return what a row holds in a column or, where it has none of that name, inside of one; None where there is neither.

    >>> gold_at({"reward_model": {"style": "rule", "ground_truth": "5"}}, "reward_model.ground_truth")
    '5'
    """
    value: Any = row
    for key in [column] if column in row else column.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def is_empty(value: Any) -> bool:
    """Return whether a gold answer is none: missing, not a number, or blank text.

    >>> [is_empty(value) for value in (None, float("nan"), " ", "0", 0)]
    [True, True, True, False, False]
    """
    is_nan = isinstance(value, float) and value != value  # noqa: PLR0124  (only NaN differs from itself)
    return value is None or is_nan or (isinstance(value, str) and not value.strip())
