"""Resolve, call and check reward functions.

A reward function is `f(prompts, completions, **columns) -> list[float | None]` (TRL's signature). Prompts and completions are
text, or conversations where the prompts are conversations; every column of the data arrives by name as a list, `answer` among
them. All of it is the function's own: each call and each completion has copies. None means that this completion cannot be
scored.

Of prompts with images, a function gets for each completion, if its signature names them: `images`, a sequence of Pillow's
images, each opened when it is asked for; `image_sizes`, (width, height) of each file as a viewer shows it; `input_sizes`, of
each image as the model gets it.

Adding one: write the function in a module of yours and name it `package.module:function` in the config; a built-in one also
gets a line in `BUILTIN_REWARDS` (config/names.py) and a hand-computed case in its test.
"""

import importlib
import inspect
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config import RewardConfig, RunConfig
from grpo_core.config.derived import code_in
from grpo_core.config.names import BUILTIN_REWARDS, near, reward_name
from grpo_core.errors import RewardError, cause, few_names, name_of
from grpo_core.machine.disk import json_copy
from grpo_core.machine.images import PromptImages
from grpo_core.rewards.bounded import (
    CPU_SECONDS,
    WORKERS,
    BoundedReward,
    Judgement,
    RowError,
    Verdicts,
    batch_digest,
    judge_batch,
)
from grpo_core.rewards.call_guard import Overrun, call_bounded
from grpo_core.types import Prompt

MESSAGES_NOT_TEXT = (
    "With data.chat_template: true, a reward function gets each prompt and completion as a list of messages, as in TRL: "
    "completion[0]['content'] is its text (or grpo_core.rewards.base.completion_text(completion))"
)
"""What the author of a function that expects text has to know."""
CALL_CPU_SECONDS = 600.0
"""Default bound of one call of a user's function, which gets the whole batch."""
Scores = tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A reward function ready to be called."""

    fn: str
    """As the config names it."""
    name: str
    """As metric keys name it: the function's last part, lower case."""
    weight: float
    args: Mapping[str, Any]
    function: Any
    cpu_seconds: float | None = None
    """Bound in CPU time, as the config has it; None = the default."""
    images: PromptImages | None = None
    """Of the prompts that it will be called with, if they have any."""


@dataclass(frozen=True, kw_only=True)
class ScoredCompletions:
    """Rewards of B completions."""

    total: tuple[float, ...]
    """Weighted sums; NaN where no function could score the completion."""
    breakdown: Mapping[str, Scores]
    """By reward name, before weights."""
    judged: tuple[Judgement, ...] = ()
    """Of the functions that are judged within a bound: what to journal."""


def load_rewards(configs: Sequence[RewardConfig], images: PromptImages | None = None) -> tuple[Reward, ...]:
    """Import every configured reward function.

    Args:
        configs: of the functions.
        images: of the prompts that they will be called with; None where these have none.

    Raises:
        RewardError: one cannot be imported or is not callable.
    """
    return tuple(
        Reward(
            fn=config.fn,
            name=reward_name(config.fn),
            weight=config.weight,
            args=config.args,
            function=_import(config.fn),
            cpu_seconds=config.cpu_seconds,
            images=images,
        )
        for config in configs
    )


def reward_notes(config: RunConfig) -> tuple[str, ...]:
    """Return what the author of a configuration's own reward functions should know before a run: what they are called with."""
    own = [code.value for code in code_in(config) if code.module is not None]
    return (f"{', '.join(own)}: {MESSAGES_NOT_TEXT}",) if own and config.data.chat_template else ()


def _import(fn: str) -> Any:
    module_name, _, attribute = BUILTIN_REWARDS.get(fn, fn).partition(":")
    here = str(Path.cwd())
    if fn not in BUILTIN_REWARDS and here not in sys.path:  # where `python -m` looks and the script `grpo` does not
        sys.path.append(here)  # last: it hides nothing that is installed
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a user's module raises whatever it does when it is imported
        there = [name for name, value in vars(sys.modules.get(module_name, object)).items() if inspect.isfunction(value)]
        meant = f"{near(attribute, there)} (functions there: {few_names(there, 10)})" if there else ""
        what = f"{type(error).__name__}: {cause(error)}{meant}"
        raise RewardError(f"rewards: {name_of(fn)} cannot be imported: {what}") from error
    if not callable(function):
        raise RewardError(f"rewards: {fn} is a {type(function).__name__}, not a function")
    return function


def start_workers(rewards: Sequence[Reward]) -> None:
    """Begin to start the workers that reward functions need, if any, beside what comes before the first completions."""
    if judges := [reward.function.judge for reward in rewards if isinstance(reward.function, BoundedReward)]:
        WORKERS.start(judges)


def score(
    rewards: Sequence[Reward], prompts: Sequence[Prompt], texts: Sequence[str], verdicts: Verdicts | None = None
) -> ScoredCompletions:
    """Score B completions, `prompts[i]` being the prompt of `texts[i]`.

    Args:
        rewards: the functions.
        prompts: B of them.
        texts: the completions.
        verdicts: what was given before; a batch among them is not judged anew, and another one is added.

    Raises:
        RewardError: a function raised or broke its signature; the message holds its name, the sample and the cause.
    """
    called = [call(reward, prompts, texts, verdicts) for reward in rewards]
    weights, totals = [reward.weight for reward in rewards], []
    for values in zip(*(scores for scores, _ in called), strict=True):
        known = [weight * value for weight, value in zip(weights, values, strict=True) if value is not None]
        totals.append(sum(known) if known else math.nan)
    return ScoredCompletions(
        total=tuple(totals),
        breakdown={reward.name: values for reward, (values, _) in zip(rewards, called, strict=True)},
        judged=tuple(judgement for _, judgements in called for judgement in judgements),
    )


def call(
    reward: Reward, prompts: Sequence[Prompt], texts: Sequence[str], verdicts: Verdicts | None = None
) -> tuple[Scores, tuple[Judgement, ...]]:
    """Call one reward function over a batch and check what it returns.

    Returns:
        (its scores, the judgement to journal; none where no bound decides a score)

    Raises:
        RewardError: as `score`.
    """
    by_row: dict[str, list[Any]] = {
        "prompts": [prompt.content if isinstance(prompt.content, str) else list(prompt.content) for prompt in prompts],
        "completions": [
            text if isinstance(prompt.content, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(prompts, texts, strict=True)
        ],
        **{
            name: [prompt.columns.get(name) for prompt in prompts]
            for name in dict.fromkeys(name for prompt in prompts for name in prompt.columns)
        },
        **_of_images(reward, prompts),
    }
    try:
        if isinstance(reward.function, BoundedReward):
            values, judgement = _judged(reward, by_row, {} if verdicts is None else verdicts)
            return _checked(reward, values, len(texts)), (judgement,)
        return _checked(reward, _called(reward, by_row), len(texts)), ()
    except RowError as error:
        sample = f"sample {error.row}: prompt {prompts[error.row].text[-200:]!r}, completion {texts[error.row][:200]!r}"
        raise RewardError(f"reward {reward.fn} {error.fault}; {sample}{error.hint}") from error.__cause__


def _of_images(reward: Reward, prompts: Sequence[Prompt]) -> dict[str, list[Any]]:
    """Return what a function gets of images, of that what its signature names: (width, height) for each image of a prompt."""
    if (images := reward.images) is None:
        return {}
    function = reward.function.rows if isinstance(reward.function, BoundedReward) else reward.function
    known = {
        "images": lambda prompt: images.of(prompt.images),
        "image_sizes": lambda prompt: [images.sizes[digest].size for digest in prompt.images],
        "input_sizes": lambda prompt: [images.sizes[digest].input_size for digest in prompt.images],
    }
    try:
        named = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of some that are not written in Python
        return {}
    return {name: list(map(value, prompts)) for name, value in known.items() if name in named}


def _judged(reward: Reward, by_row: Mapping[str, Any], verdicts: Verdicts) -> tuple[list[float | None], Judgement]:
    """Judge a batch in the workers, or as it was judged before."""
    bound = CPU_SECONDS if reward.cpu_seconds is None else reward.cpu_seconds
    try:
        rows = reward.function.rows(**by_row, **reward.args)
    except Exception as error:  # a column is missing or of another kind, an argument is none
        raise RewardError(f"reward {reward.fn} raised {type(error).__name__}: {error}") from error
    key = reward.name, batch_digest(rows, bound)
    values, timeouts = judge_batch(rows, bound, verdicts.get(key))
    verdicts.setdefault(key, timeouts)
    return values, Judgement(fn=reward.name, batch=key[1], timeouts=timeouts)


def _called(reward: Reward, by_row: Mapping[str, list[Any]]) -> Any:
    """Call a function in this process."""
    try:
        return _invoke(reward, by_row)
    except Overrun as error:
        raise RewardError(str(error)) from None
    except Exception as error:  # whatever a user's function raises becomes one clear message
        culprit = _first_failing(reward, by_row)
        is_text = isinstance(by_row["completions"][culprit], str) or reward.fn in BUILTIN_REWARDS
        fault = f"raised {type(error).__name__}: {error}"
        raise RowError(culprit, fault, "" if is_text else f". {MESSAGES_NOT_TEXT}") from error


def _invoke(reward: Reward, by_row: Mapping[str, list[Any]]) -> Any:
    # Copies: the prompts are those of every completion of a group, of other functions and of later steps.
    own, arguments = json_copy(by_row), json_copy(dict(reward.args))
    bound = CALL_CPU_SECONDS if reward.cpu_seconds is None else reward.cpu_seconds
    what = f"reward {reward.fn}, called with {len(own['completions'])} completions"
    return call_bounded(lambda: reward.function(**own, **arguments), bound, what)


def _first_failing(reward: Reward, by_row: Mapping[str, list[Any]]) -> int:
    """Return the index of the first sample that raises on its own; 0 where only the batch does."""
    for row in range(len(by_row["completions"])):
        try:
            _invoke(reward, {name: [values[row]] for name, values in by_row.items()})
        except (Exception, Overrun):  # noqa: BLE001  (the point is to find which sample raises, not why)
            return row
    return 0


def _checked(reward: Reward, values: Any, number: int) -> Scores:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise RewardError(f"reward {reward.fn} returned a {type(values).__name__}; expected a list of {number} numbers")
    if len(values) != number:
        raise RewardError(f"reward {reward.fn} returned {len(values)} values for {number} completions")
    for row, value in enumerate(values):
        # A comparison, not isfinite: that overflows on an integer which no float can hold.
        if value is not None and not (isinstance(value, int | float) and abs(value) <= sys.float_info.max):
            raise RowError(row, f"returned {value!r} ({type(value).__name__}); expected a finite number or None")
    return tuple(None if value is None else float(value) for value in values)


def completion_text(completion: Any) -> str:
    """Return the text of a plain or conversational completion; for use inside reward functions."""
    return completion if isinstance(completion, str) else "".join(str(message["content"]) for message in completion)
