"""From raw rows to prompts: map the columns, build the conversation, apply the chat template, drop what is too long, split.

Which of them a step trains on is a function of the seed and the step alone, so a run can enter at any step.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_core.config import DataConfig, RunConfig
from grpo_core.config.inert import warning_if
from grpo_core.config.names import CHARACTERS_PER_TOKEN, MADE_KINDS
from grpo_core.data.contents import raw_content
from grpo_core.data.encoding import ImageEncoder, processor_facts
from grpo_core.data.endings import prompt_text, require_open_end
from grpo_core.data.row_images import RowImages, images_of
from grpo_core.data.sources import Row
from grpo_core.data.splitting import PromptSplit, split_prompts
from grpo_core.errors import DataError, few_names, shown
from grpo_core.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RESERVED = ("completion_ids", "completions", "log_extra", "log_metric", "prompts", "trainer_state")
"""Arguments by which TRL and this project hand a reward function what is not a column."""
FEW_STEPS, FEW_HELD_OUT = 5, 30
"""Fewer steps until a prompt is back, fewer held-out prompts, are worth a warning."""


def build_prompts(
    rows: Sequence[Row],
    config: DataConfig,
    tokenizer: "PreTrainedTokenizerBase",
    max_prompt_tokens: int,
    end_tokens: Collection[int] = (),
    *,
    encoder: ImageEncoder | None = None,
) -> PromptSplit:
    """Return the prompts of `rows`, split into train and eval by `data.seed`.

    Args:
        rows: as `read_rows` gives them.
        config: of the data.
        tokenizer: of the model, with its chat template.
        max_prompt_tokens: the longest that is kept.
        end_tokens: that end a completion.
        encoder: of a model that reads images.

    Raises:
        DataError: a column is missing, a row cannot be used, its prompt ends in one of `end_tokens`, which end a completion,
            or a split is left empty.
    """
    check_rows(rows, config)
    found = tokenized(rows, config, tokenizer, max_prompt_tokens, end_tokens, encoder=encoder)
    made = [prompt for prompt in found if prompt is not None]
    kept = [prompt for prompt in made if len(prompt.token_ids) <= max_prompt_tokens]
    num_too_long = len(rows) - len(kept)
    if not kept:
        raise DataError(
            f"data.source {config.source}: no prompt is left of {len(rows)} rows; {num_too_long} have more than "
            f"rollout.max_prompt_tokens {max_prompt_tokens} tokens{limit_of(made)}"
        )
    split = split_prompts(kept, num_too_long, config)
    if encoder is None or not encoder.sizes:
        return split
    facts = processor_facts(encoder.processor.processor, config.max_image_pixels)
    return replace(split, images=encoder.images, processor=facts)


def limit_of(prompts: Sequence[Prompt]) -> str:
    """Return `; the longest has 44: rollout.max_prompt_tokens=48`, a limit that all of some prompts keep: a multiple of 16."""
    longest = max((len(prompt.token_ids) for prompt in prompts), default=0)
    return f"; the longest has {longest}: rollout.max_prompt_tokens={-(-longest // 16) * 16}" if longest else ""


def tokenized(
    rows: Sequence[Row],
    config: DataConfig,
    tokenizer: "PreTrainedTokenizerBase",
    max_prompt_tokens: int,
    end_tokens: Collection[int],
    *,
    encoder: ImageEncoder | None = None,
) -> Iterator[Prompt | None]:
    """Yield the prompt of each row; None where it is too long to be worth tokens.

    It takes what `build_prompts` does.

    Raises:
        DataError: a row cannot be used, or its prompt ends in one of `end_tokens`.
    """
    for index, row in enumerate(rows):
        content, (column, digests) = raw_content(row, index, config), images_of(row)
        if encoder is not None:
            encoder.refuse_words(content, index, config.prompt_column)
        text = prompt_text(content, index, tokenizer)
        # Too long whatever the tokenizer makes of it, which for megabytes takes minutes to find out.
        if len(text) > max_prompt_tokens * CHARACTERS_PER_TOKEN or len(digests) > max_prompt_tokens:
            yield None
            continue
        if encoder is not None and digests:
            text = encoder.with_places(text, len(digests)) if isinstance(content, str) else text
            token_ids = encoder.encode(text, digests, index, column)
        else:
            token_ids = tuple(tokenizer(text, add_special_tokens=not config.chat_template)["input_ids"])
        if not token_ids:
            raise DataError(f"data.prompt_column {config.prompt_column!r}, row {index}: the tokenizer makes no token of it")
        prompt = Prompt(
            id=index,
            content=content,
            text=text,
            token_ids=token_ids,
            columns=columns_of(row, index, config),
            images=tuple(digests),
        )
        require_open_end(prompt, tokenizer, end_tokens)
        yield prompt


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
    of_images = config.image_column
    if of_images is not None and not any(isinstance(row.get(of_images), RowImages) for row in rows):
        reason = "the model of model.source reads no images" if of_images in rows[0] else f"no such column in {config.source}"
        raise DataError(f"data.image_column {shown(of_images)}: {reason}; remove the key")
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
    blank = [isinstance(gold, str) and not gold.strip() for gold in golds]
    empty = [index for index, gold in enumerate(golds) if gold is None or blank[index] or gold != gold]  # noqa: PLR0124  (NaN)
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


def columns_of(row: Row, index: int, config: DataConfig) -> dict[str, Any]:
    """Return what reward functions get of a row by name, its gold answer as `answer`.

    Raises:
        DataError: the gold answer lacks the marker of `data.answer_after`, or nothing follows it.
    """
    columns = {
        key: value
        for key, value in row.items()
        if key not in (config.prompt_column, config.answer_column) and not isinstance(value, RowImages)
    }
    if config.answer_column is None:
        return columns
    gold = gold_at(row, config.answer_column)
    if config.answer_after is not None:
        _, marker, rest = str(gold).rpartition(config.answer_after)
        if not marker or not rest.strip():
            where = "nothing follows it" if marker else "not"
            raise DataError(
                f"data.answer_after {config.answer_after!r}: {where} in the answer of row {index} ({str(gold)!r:.80})"
            )
        gold = rest.strip()
    return {**columns, "answer": gold}


def few_prompts(config: RunConfig, num_train: int, num_held_out: int) -> list[str]:
    """Return warnings about a run with so few prompts."""
    data, asked = config.data, config.rollout.num_prompts_per_step
    measured = min(num_held_out, config.evaluation.num_prompts or num_held_out)
    findings = (
        warning_if(  # of a task that makes them the configuration alone tells
            num_train < asked and not data.source.startswith(MADE_KINDS),
            f"rollout.num_prompts_per_step: {asked} is more than the {num_train} training prompts of data.source {data.source}"
            ": prompts repeat within a step",
        ),
        warning_if(
            asked <= num_train < min(FEW_STEPS, config.training.steps) * asked,
            f"rollout.num_prompts_per_step: {asked} of the {num_train} training prompts: each is back after less than "
            f"{FEW_STEPS} steps",
        ),
        warning_if(
            0 < measured < FEW_HELD_OUT,
            f"data.eval_fraction: accuracy will be ± {0.98 / math.sqrt(measured or 1):.1f}, measured on {measured} held-out "
            f"prompts; hold out {FEW_HELD_OUT} or more",
        ),
    )
    return [finding.text for finding in findings if finding.holds]


def prompts_of_step(prompts: Sequence[Prompt], num_prompts_per_step: int, seed: int, step: int) -> tuple[Prompt, ...]:
    """Return the prompts of `step` (from 1).

    Each pass over the data is a fresh permutation; passes follow each other without a gap, so a batch may end one pass and
    begin the next.

    >>> prompts = [Prompt(id=i, content="", text="", token_ids=(), columns={}) for i in range(3)]
    >>> sorted(p.id for step in (1, 2, 3) for p in prompts_of_step(prompts, 1, seed=0, step=step))
    [0, 1, 2]
    """
    first = (step - 1) * num_prompts_per_step
    places = [divmod(position, len(prompts)) for position in range(first, first + num_prompts_per_step)]
    orders = {epoch: np.random.default_rng([seed, epoch]).permutation(len(prompts)) for epoch in {epoch for epoch, _ in places}}
    return tuple(prompts[int(orders[epoch][index])] for epoch, index in places)
