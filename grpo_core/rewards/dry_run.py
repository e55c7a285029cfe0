"""Call reward functions on a few rows before a run starts, and say in one line what is wrong with one and where in its code."""

import sysconfig
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.names import BUILTIN_REWARDS
from grpo_core.data.contents import raw_content
from grpo_core.data.prompts import columns_of
from grpo_core.data.row_images import images_of
from grpo_core.data.sources import Row
from grpo_core.errors import RewardError, cause
from grpo_core.machine.images import PromptImages
from grpo_core.rewards.base import MESSAGES_NOT_TEXT, Reward, Scores, call, load_rewards
from grpo_core.types import Prompt, text_of

LARGEST_REWARD = 1e18
"""The largest float32 is 3.4e38."""
CONSTANTS = ("nan", "inf", "0", "1", "-1", "x", "{}", "[]", "", "True", "False", "None", "Yes", "No")
"""Answers that need no question: no verifier may score one nearly as high as the gold answers."""
NEAR = 0.1
"""A wrong answer scores nearly as high as the gold answer within this share of the range of scores."""
LOOK_SECONDS = 10.0
"""A slow function is called with the gold answers and as many of the constants as this allows."""
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
            text=content if isinstance(content, str) else text_of(content[-1]["content"]),
            token_ids=(),
            columns=columns_of(row, index, config.data),
            images=tuple(images_of(row)[1]),
        )
        for index, (row, content) in enumerate(zip(rows, contents, strict=True))
    ]


def dry_run(
    index: int,
    config: RunConfig,
    prompts: Sequence[Prompt],
    folders: Sequence[str] = (),
    images: PromptImages | None = None,
) -> Iterator[str]:
    """Import one reward function and call it, with the gold answers as completions; yield warnings about what it returned.

    A function that uses the gold answer is called with wrong ones as well.

    Args:
        index: of the function in `rewards`.
        config: of the run.
        prompts: the first of the data.
        folders: in which its module is looked for, beside what is installed; for the message.
        images: of these prompts.

    Raises:
        RewardError: names the function, what it raised, and the file and line in the user's code.
    """
    reward = config.rewards[index]
    what = f"rewards.{index}.fn {reward.fn}:"
    try:
        (loaded,) = load_rewards([reward], images)
    except RewardError as error:
        looked = f"; looked for in {' and '.join(folders)}" if isinstance(error.__cause__, ImportError) and folders else ""
        raise RewardError(f"{what} {_rest(error, reward.fn)}{_place(error.__cause__)}{looked}") from error
    if not reward.dry_run:
        return
    until, golds = time.monotonic() + LOOK_SECONDS, [str(prompt.columns.get("answer", "")) for prompt in prompts]
    values = _values(what, loaded, prompts, golds, "their gold answers")
    if not (known := [value for value in values if value is not None]):
        yield f"{what} returned None (cannot be scored) for each of the first {len(values)} rows, with its gold answer"
    if known and abs(largest := max(known, key=abs)) > LARGEST_REWARD:
        yield f"{what} returned {largest:g}; float32 cannot hold the squares of rewards beyond {LARGEST_REWARD:g}"
    if config.data.answer_column is not None and _uses_gold(loaded, prompts, golds, values):
        yield from _rivals(what, loaded, prompts, golds, _mean(values), until=until)


def _values(what: str, loaded: Reward, prompts: Sequence[Prompt], texts: Sequence[str], kind: str) -> Scores:
    try:
        return call(loaded, prompts, texts)[0]
    except RewardError as error:
        raised, fault, hint = error.__cause__, _rest(error, loaded.fn), ""
        if isinstance(raised, TypeError) and "argument" in str(raised):
            hint = f"; the columns of the data are {', '.join(prompts[0].columns)}"
        elif not isinstance(prompts[0].content, str) and loaded.fn not in BUILTIN_REWARDS:
            hint = f". {MESSAGES_NOT_TEXT}"
        if raised is not None:  # it did not break its signature
            fault = f"raised {type(raised).__name__}: {cause(raised)}{_place(raised)}{hint}"
        called = f"it was called on the first {len(prompts)} rows with {kind} as completions"
        raise RewardError(f"{what} {fault}; {called}") from error


def _uses_gold(loaded: Reward, prompts: Sequence[Prompt], golds: Sequence[str], values: Scores) -> bool:
    """Return whether the scores need the column `answer`; those of a length or a format do not."""
    without = [
        replace(prompt, columns={name: value for name, value in prompt.columns.items() if name != "answer"})
        for prompt in prompts
    ]
    try:
        return call(loaded, without, golds)[0] != values
    except RewardError:
        return True


def _rivals(
    what: str, loaded: Reward, prompts: Sequence[Prompt], golds: Sequence[str], earned: float, *, until: float
) -> Iterator[str]:
    """Yield that wrong answers score nearly as high as the gold answers, whose mean score is `earned`, or make it raise."""
    texts = {f"the constant {constant!r}": [constant] * len(golds) for constant in CONSTANTS}
    if len(set(golds)) > 1:
        texts["another row's gold answer"] = [next(other for other in reversed(golds) if other != gold) for gold in golds]
    scores: dict[str, float] = {}
    for kind, completions in texts.items():
        if time.monotonic() > until:
            break
        try:
            scores[kind] = _mean(_values(what, loaded, prompts, completions, kind))
        except RewardError as error:
            yield f"{error}; a completion like that would end the run"
            return
    # Where even the gold answers earn nothing, the function expects them in some format.
    worst = min(0.0, earned, *scores.values())
    rivals = [kind for kind, score in scores.items() if earned > worst and score >= earned - NEAR * (earned - worst)]
    if rivals:
        yield (
            f"{what} {rivals[0]} scores {scores[rivals[0]]:.3g} on average over the first {len(golds)} rows, where the gold "
            f"answers score {earned:.3g}; so do {len(rivals) - 1} of {len(texts) - 1} other wrong answers. A policy can be "
            "trained to print it"
        )


def _mean(values: Scores) -> float:
    return sum(value or 0.0 for value in values) / len(values)


def _rest(error: RewardError, fn: str) -> str:
    """Return a message without its beginning, which names the function."""
    return str(error).partition(f"{fn} ")[2] or str(error)


def _place(error: BaseException | None) -> str:
    """Return ` (my_rewards.py, line 12)`, the innermost line of the user's own code behind an error; empty if there is none."""
    frames = [] if error is None else traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames if not frame.filename.startswith(NOT_THE_USERS)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        places = [(error.filename, error.lineno)]
    if not places:
        return ""
    file = Path(places[-1][0])
    return f" ({file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}, line {places[-1][1]})"
