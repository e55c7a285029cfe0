"""A process that looks at a run before it starts: `model` at its model, `data` at its first rows and its reward functions.

`python -m grpo_core.run.rehearsal PART < facts.json` prints JSON lines, [kind, content]: `doing` is what is about to be looked
at, so that whoever waits can name it; the others are faults, warnings, notes, and the outline of the model. It is a process
because code of users may take for ever, crash or end the process, because importing transformers takes seconds, which pass
beside the other checks, and because the transformers that counts is that of the interpreter that trains. What that code prints
is dropped.
"""

import contextlib
import gc
import importlib
import inspect
import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig, validate_config
from grpo_core.config.names import MADE_KINDS
from grpo_core.data.encoding import ImageEncoder, images_note, seen_images
from grpo_core.data.endings import doubtful_template, end_of, end_tokens_of
from grpo_core.data.prepare import load_encoder
from grpo_core.data.prompts import check_rows, few_prompts, limit_of, tokenized
from grpo_core.data.row_images import image_column, kept_images, reads_images
from grpo_core.data.sources import Row, file_of, read_rows
from grpo_core.data.splitting import count_held_out
from grpo_core.errors import DataError, GrpoError, RewardError, cause
from grpo_core.machine.images import ImageSizes
from grpo_core.machine.process import exit_with_lifeline
from grpo_core.policy.sources.find import model_here
from grpo_core.rewards.dry_run import dry_run, untokenized
from grpo_core.run.child import import_from
from grpo_core.types import Prompt

ROWS, WHOLE_FILE_BYTES = 1000, 64_000_000
"""How many rows are looked at, of a file that is larger than that and of a hub's data set; all are, when they are frozen."""
ROWS_WITH_IMAGES = 100
"""How many where the model reads images, each of which has to be kept, opened and resized."""
MADE = 20
"""How many rows that a program makes, each when it is asked for."""
CALLED_WITH = 8
"""How many rows a reward function is called with."""
UNUSED = ("scipy", "sklearn")
"""Packages that transformers imports where they are installed, for losses that no language model has: a third of a second."""
Line = tuple[str, Any]
"""Kind and content."""


def look_at_model(config: RunConfig) -> Iterator[Line]:
    """Yield the outline of a run's model, made as the training will load it but for the values of its weights.

    Raises:
        GrpoError: it cannot be loaded.
    """
    if not config.model.trust_remote_code:  # which may need them
        sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # None = there is no such module
    from grpo_core.policy.loading import check_folder

    yield "doing", f"model.source {config.model.source}"
    folder = model_here(config.model.source)
    assert folder is not None
    yield "outline", asdict(check_folder(folder, config.model.trust_remote_code))


def look_at_data(config: RunConfig, folders: Sequence[str]) -> Iterator[Line]:
    """Yield what is wrong, doubtful or worth a look in the first rows of a run and what its reward functions make of them.

    Raises:
        GrpoError: the rows cannot be used.
    """
    yield "doing", f"data.source {config.data.source}"
    kind, _, name = config.data.source.partition(":")
    is_whole = kind == "file" and (file := file_of(name)).is_file() and file.stat().st_size <= WHOLE_FILE_BYTES
    folder = model_here(config.model.source)
    with_images = folder is not None and reads_images(folder)
    is_whole = is_whole and not with_images
    most = max(ROWS_WITH_IMAGES if with_images else ROWS, config.rollout.num_prompts_per_step)
    most = MADE if config.data.source.startswith(MADE_KINDS) else most
    rows = read_rows(config.data, None if is_whole else most, with_images=with_images)
    if folder is None and image_column(rows[0], config.data) is not None:  # whether the model reads them is not known yet
        with contextlib.suppress(DataError):
            rows = read_rows(config.data, most, with_images=True)
    check_rows(rows, config.data)
    if folder is not None and not with_images and (unread := image_column(rows[0], config.data)) is not None:
        yield "warnings", f"data: column {unread!r} is left out, since {config.model.source} (model.source) reads text alone"
    prompts, answers = untokenized(rows, config), defaultdict[str, set[str]](set)
    first, sizes = rows[: ROWS_WITH_IMAGES if with_images else most], dict[str, ImageSizes]()
    yield from _few_prompts(prompts, first, config, sizes, is_all=is_whole or len(rows) < most)
    for prompt in prompts:
        answers[repr((prompt.content, prompt.images))].add(str(prompt.columns.get("answer")))
    if several := sum(len(found) > 1 for found in answers.values()):
        key = f"data.answer_column {config.data.answer_column!r}"
        yield "warnings", f"{key}: {several} prompt(s) have several gold answers; each row is judged by its own"
    images = seen_images(kept_images(config.data), prompts[:CALLED_WITH], sizes)
    for index, reward in enumerate(config.rewards):
        yield "doing", f"rewards.{index}.fn {reward.fn}"
        try:
            yield from (("warnings", text) for text in dry_run(index, config, prompts[:CALLED_WITH], folders, images))
        except RewardError as error:
            yield "faults", str(error)
        except SystemExit as error:
            yield "faults", f"rewards.{index}.fn {reward.fn}: ended its process with sys.exit({cause(error)})"
    yield from _rules(config)


def _rules(config: RunConfig) -> Iterator[Line]:
    """Yield what is wrong with the monitor's own functions; none is called, as there is no figure yet."""
    for index, rule in enumerate(config.monitor.rules):
        if rule.function is None:
            continue
        what, (module, _, attribute) = f"monitor.rules.{index}.function {rule.function}", rule.function.partition(":")
        yield "doing", what
        try:
            inspect.signature(getattr(importlib.import_module(module), attribute)).bind([], **rule.options)
        except TypeError as error:
            options = "".join(f", {name}=..." for name in rule.options)
            yield "faults", f"{what}: cannot be called as f(history{options}): {error}"
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's module raises whatever it does when it is imported)
            yield "faults", f"{what}: cannot be imported: {type(error).__name__}: {cause(error)}"


def _few_prompts(
    prompts: Sequence[Prompt], first: Sequence[Row], config: RunConfig, sizes: dict[str, ImageSizes], *, is_all: bool
) -> Iterator[Line]:
    """Yield what the tokenizer and its template make of the first rows; and of which prompts there are few.

    Args:
        prompts: of all rows, without tokens.
        first: the rows that are tokenized.
        config: of the run.
        sizes: to which those of the images of the first rows are added.
        is_all: whether there are no other rows.

    Raises:
        DataError: the training would refuse a row, all prompts are too long, or the split would leave a side empty.
    """
    data, most, kept = config.data, config.rollout.max_prompt_tokens, list(prompts)
    folder, tokenizer, encoder = _tokenizer_here(config)
    if folder is not None and tokenizer is not None and not (data.chat_template and tokenizer.chat_template is None):
        ends = end_tokens_of(folder, tokenizer)
        made = [prompt for prompt in tokenized(first, data, tokenizer, most, ends, encoder=encoder) if prompt is not None]
        short = {prompt.id for prompt in made if len(prompt.token_ids) <= most}
        if not short:
            raise DataError(
                f"rollout.max_prompt_tokens: {most} is less than each of the first {len(first)} prompts has, so none would be "
                f"left{limit_of(made)}"
            )
        if len(short) < len(first):
            what = f"leaves out {len(first) - len(short)} of the first {len(first)} prompts"
            yield "warnings", f"rollout.max_prompt_tokens: {most} {what}{limit_of(made)}"
        kept = [prompt for prompt in prompts if prompt.id in short or prompt.id >= len(first)]
        for prompt in made[:1]:
            yield "notes", f"the first prompt ends with …{end_of(prompt, tokenizer)!r}"
            yield from (("warnings", text) for text in doubtful_template(prompt, tokenizer, ends))
        if encoder is not None and encoder.sizes:
            sizes |= encoder.sizes
            yield "notes", images_note(made, encoder.sizes, encoder.processor.placeholder_id)
    if not is_all:
        return
    held_out = count_held_out(len({repr((prompt.content, prompt.images)) for prompt in kept}), data)
    yield from (("warnings", text) for text in few_prompts(config, len(kept) - held_out, held_out))


def _tokenizer_here(config: RunConfig) -> tuple[Path | None, Any, ImageEncoder | None]:
    """Return folder, tokenizer and image encoder of a model, as far as they are here and can be read."""
    folder = model_here(config.model.source)
    with contextlib.suppress(Exception):  # one that cannot be read is refused by the look at the model
        if folder is not None and reads_images(folder):
            return folder, *load_encoder(config, folder)
        from transformers import PreTrainedTokenizerFast  # half a second; torch, which AutoTokenizer imports, takes two more

        return folder, None if folder is None else PreTrainedTokenizerFast.from_pretrained(folder), None
    return folder, None, None


def main() -> None:
    """Read configuration and folders from standard input, and print what is found."""
    exit_with_lifeline()
    gc.disable()  # nearly all objects are modules, and walking them takes half a second
    facts = json.load(sys.stdin)
    config, folders = validate_config(facts["config"]), facts["folders"]
    import_from(folders)
    with os.fdopen(os.dup(1), "w") as results:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        lines = look_at_model(config) if sys.argv[1] == "model" else look_at_data(config, folders)
        try:
            for line in itertools.chain(lines, [("doing", "")]):
                print(json.dumps(line), file=results, flush=True)
        except GrpoError as error:
            print(json.dumps(("faults", str(error))), json.dumps(("doing", "")), sep="\n", file=results, flush=True)
    os._exit(0)  # taking the modules down takes a second


if __name__ == "__main__":
    main()
