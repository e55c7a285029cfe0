"""Rows as VLM-R1 writes them (commit 90052f4): `conversations` of a human and a model, and `image`, a path or a list of paths.

    {"id": 1, "image": "a.jpg", "conversations": [{"from": "human", "value": "<image>Where is it?"},
                                                   {"from": "gpt", "value": "[1, 2, 3, 4]"}], "accu_reward_method": "default"}

`<image>` is removed wherever it stands; images come first. `<answer>` tags are removed from the answer and put around it again,
each with a blank. All other columns are handed on.
"""

from typing import Any

from grpo_core.config import DataConfig
from grpo_core.errors import DataError, shown

COLUMN = "conversations"


def from_conversations(row: dict[str, Any], index: int, config: DataConfig) -> dict[str, Any]:
    """Return a row of VLM-R1 under the columns of a configuration; any other row as it is.

    Raises:
        DataError: its conversation is not one question and one answer.
    """
    if COLUMN not in row or config.prompt_column in row:
        return row
    turns = row[COLUMN]
    is_pair = isinstance(turns, list) and len(turns) == 2 and all(isinstance(turn, dict) for turn in turns)
    is_pair = is_pair and isinstance(turns[0].get("value"), str) and turns[1].get("value") is not None
    if not is_pair or [turn.get("from") for turn in turns] != ["human", "gpt"]:
        raise DataError(f"column {COLUMN!r}, row {index}: expected one turn of human, then one of gpt, got {shown(turns)}")
    question, answer = turns[0]["value"].replace("<image>", ""), str(turns[1]["value"])
    bare = answer.replace("<answer>", "").replace("</answer>", "").strip()
    others = {name: value for name, value in row.items() if name != COLUMN}
    return {**others, config.prompt_column: question, config.answer_column or "answer": f"<answer> {bare} </answer>"}
