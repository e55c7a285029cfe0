"""Call reward functions on a few rows before a run starts, and say in one line what is wrong with one and where in its code."""

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.names import BUILTIN_REWARDS
from grpo_core.data.prompts import columns_of, raw_content
from grpo_core.data.sources import Row
from grpo_core.errors import RewardError, cause
from grpo_core.rewards.base import MESSAGES_NOT_TEXT, call, load_rewards
from grpo_core.types import Prompt

LARGEST_REWARD = 1e18
"""The largest float32 is 3.4e38."""
NOT_THE_USERS = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(__file__).resolve().parents[1]), "<"}
)
"""Beginnings of files in which no user looks for a mistake of their own."""


def untokenized(rows: Sequence[Row], config: RunConfig) -> list[Prompt]:
    """Return the prompts of rows as reward functions get them; without tokens, and with the text of the last message alone.

    Raises:
        DataError: a row cannot be used.
    """
    contents = [raw_content(row, index, config.data) for index, row in enumerate(rows)]
    return [
        Prompt(
            id=index,
            content=content,
            text=content if isinstance(content, str) else content[-1]["content"],
            token_ids=(),
            columns=columns_of(row, index, config.data),
        )
        for index, (row, content) in enumerate(zip(rows, contents, strict=True))
    ]


def dry_run(index: int, config: RunConfig, prompts: Sequence[Prompt], folders: Sequence[str] = ()) -> tuple[str, ...]:
    """Import one reward function and call it, with the gold answers as completions; return warnings about what it returned.

    Args:
        index: of the function in `rewards`.
        config: of the run.
        prompts: the first of the data.
        folders: in which its module is looked for, beside what is installed; for the message.

    Raises:
        RewardError: names the function, what it raised, and the file and line in the user's code.
    """
    reward = config.rewards[index]
    what = f"rewards.{index}.fn {reward.fn}:"
    try:
        (loaded,) = load_rewards([reward])
    except RewardError as error:
        fault = f"{what} {_without_prefix(str(error), reward.fn)}{_place(error.__cause__)}"
        if isinstance(error.__cause__, ModuleNotFoundError) and folders:
            fault += f"; looked for in {' and '.join(folders)}"
        raise RewardError(fault + _hidden(reward.fn, folders)) from error
    if not reward.dry_run:
        return ()
    answers = [str(prompt.columns.get("answer", "")) for prompt in prompts]
    try:
        values, _ = call(loaded, prompts, answers)
    except RewardError as error:
        raised = error.__cause__
        skip = f"; it was called on the first {len(prompts)} rows with their gold answers as completions"
        if raised is None:  # it broke its signature
            raise RewardError(f"{what} {_without_prefix(str(error), reward.fn)}{skip}") from error
        hint = _hint(raised, reward.fn, prompts[0].columns, is_chat=not isinstance(prompts[0].content, str))
        raise RewardError(f"{what} raised {type(raised).__name__}: {cause(raised)}{_place(raised)}{hint}{skip}") from error
    return tuple(_doubts(what, values))


def _doubts(what: str, values: Sequence[float | None]) -> Iterator[str]:
    """Yield what is allowed of a function's values, and seldom meant."""
    known = [value for value in values if value is not None]
    if not known:
        yield f"{what} returned None (cannot be scored) for each of the first {len(values)} rows, with its gold answer"
    if known and (largest := max(known, key=abs)) and abs(largest) > LARGEST_REWARD:
        yield f"{what} returned {largest:g}; float32 cannot hold the squares of rewards beyond {LARGEST_REWARD:g}"


def _hidden(fn: str, folders: Sequence[str]) -> str:
    """Return that another module of the same name hides a user's file, such as one of the standard library; empty if none does.

    Only for what cannot be imported: what can is the function that was meant.
    """
    top = fn.partition(":")[0].partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None) or "a built-in module of Python"
    own = [path for folder in folders for path in (Path(folder) / f"{top}.py", Path(folder) / top) if path.exists()]
    hides = top in sys.modules and bool(own) and not any(Path(file).is_relative_to(path.parent) for path in own)
    return f"; {top} is {file}, which hides {own[0]}: rename yours" if hides else ""


def _without_prefix(text: str, fn: str) -> str:
    """Return the rest of a message that begins with the function's name.

    >>> _without_prefix("reward my:f returned 3 values for 2 completions", "my:f")
    'returned 3 values for 2 completions'
    """
    return text.partition(f"{fn} ")[2] or text


def _hint(raised: BaseException, fn: str, columns: Mapping[str, object], *, is_chat: bool) -> str:
    if isinstance(raised, TypeError) and "argument" in str(raised):
        return f"; the columns of the data are {', '.join(columns)}"
    return f". {MESSAGES_NOT_TEXT}" if is_chat and fn not in BUILTIN_REWARDS else ""


def _place(error: BaseException | None) -> str:
    """Return ` (my_rewards.py, line 12)`, the innermost line of the user's own code behind an error; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" ({_shown_file(error.filename)}, line {error.lineno})"
    frames = [] if error is None else traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames]
    own = [place for place in places if not place[0].startswith(NOT_THE_USERS)]
    return f" ({_shown_file(own[-1][0])}, line {own[-1][1]})" if own else ""


def _shown_file(file: str) -> str:
    path = Path(file)
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
