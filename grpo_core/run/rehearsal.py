"""A process that reads the first rows of a run's data and calls its reward functions on some of them.

`python -m grpo_core.run.rehearsal < facts.json` prints JSON lines, [kind, content]: `doing` is what is about to be looked at,
so that whoever waits can name it; the other kinds are fields of `Findings`. It is a process because code of users may take
for ever, crash or end the process. What that code prints is dropped.
"""

import gc
import importlib
import inspect
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence

from grpo_core.config import DataConfig, RunConfig, validate_config
from grpo_core.config.names import CHARACTERS_PER_TOKEN
from grpo_core.data.prompts import count_held_out
from grpo_core.data.rows import check_rows
from grpo_core.data.sources import Row, file_of, first_rows, read_rows
from grpo_core.errors import DataError, GrpoError, RewardError, cause, raised_as
from grpo_core.machine.lifeline import exit_with_lifeline
from grpo_core.policy.sources.find import model_here
from grpo_core.rewards.dry_run import dry_run, untokenized
from grpo_core.rewards.simple import MAX_CHARACTERS
from grpo_core.run.imports import import_from
from grpo_core.run.prompt_check import look_at_prompts
from grpo_core.types import Prompt

ROWS, WHOLE_FILE_BYTES = 1000, 64_000_000
"""How many rows are looked at, of a file that is larger than that and of a hub's data set; all are, when they are frozen."""
MADE = 20
"""How many rows of a reasoning-gym task, each of which a program makes."""
CALLED_WITH = 8
"""How many rows a reward function is called with."""
Line = tuple[str, str]
"""Kind and content."""


def rehearse(config: RunConfig, folders: Sequence[str]) -> Iterator[Line]:
    """Yield what is about to be done (`doing`), what is wrong, doubtful or worth a look."""
    yield "doing", f"data.source {config.data.source}"
    try:
        rows = _rows(config)
        check_rows(rows, config.data)
        prompts = untokenized(rows, config)
        yield from _few_prompts(rows, short_enough(prompts, config), config)
        yield from look_at_prompts(rows[:ROWS], config)
    except GrpoError as error:
        yield "faults", str(error)
    else:
        yield from _doubtful_answers(prompts, config)
        for index, reward in enumerate(config.rewards):
            yield "doing", f"rewards.{index}.fn {reward.fn}"
            try:
                yield from (("warnings", text) for text in dry_run(index, config, prompts[:CALLED_WITH], folders))
            except RewardError as error:
                yield "faults", str(error)
            except SystemExit as error:
                yield "faults", f"rewards.{index}.fn {reward.fn}: ended its process with sys.exit({cause(error)})"
        yield from _rule_faults(config)
    yield "doing", ""


def _doubtful_answers(prompts: Sequence[Prompt], config: RunConfig) -> Iterator[Line]:
    if config.data.answer_column is None:
        return
    key, answers = f"data.answer_column {config.data.answer_column!r}", defaultdict[str, set[str]](set)
    for prompt in prompts:
        answers[repr(prompt.content)].add(str(prompt.columns["answer"]))
    if several := sum(len(found) > 1 for found in answers.values()):
        yield "warnings", f"{key}: {several} prompt(s) have several gold answers; each row is judged by its own"
    is_maths = any(reward.fn == "math_answer" for reward in config.rewards)
    long = [prompt.id for prompt in prompts if is_maths and len(str(prompt.columns["answer"])) > MAX_CHARACTERS]
    if long:
        yield (
            "warnings",
            f"{key}: {len(long)} gold answer(s) have more than {MAX_CHARACTERS} characters, the first is row {long[0]}; "
            f"math_answer reads the last {MAX_CHARACTERS} of a completion",
        )


def _rule_faults(config: RunConfig) -> Iterator[Line]:
    """Yield the functions of rules that cannot be imported or called; none is called, as there is no figure yet."""
    for index, rule in enumerate(config.monitor.rules):
        if rule.function is None:
            continue
        what, (module, _, attribute) = f"monitor.rules.{index}.function {rule.function}", rule.function.partition(":")
        yield "doing", what
        try:
            signature = inspect.signature(getattr(importlib.import_module(module), attribute))
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's module raises whatever it does when it is imported)
            yield "faults", f"{what}: cannot be imported: {type(error).__name__}: {cause(error)}"
            continue
        try:
            signature.bind([], **rule.options)
        except TypeError as error:
            options = "".join(f", {name}=..." for name in rule.options)
            yield "faults", f"{what}: cannot be called as f(history{options}): {error}"


def short_enough(prompts: Sequence[Prompt], config: RunConfig) -> list[Prompt]:
    """Return the prompts that are not surely too long: all, unless the tokenizer is here and needs no transformers.

    What the chat template adds is not counted: a prompt has at least so many tokens.

    Raises:
        DataError: all are too long; names the shortest.
    """
    from tokenizers import Tokenizer

    folder, most = model_here(config.model.source), config.rollout.max_prompt_tokens
    if folder is None or not (folder / "tokenizer.json").is_file():
        return list(prompts)
    with raised_as(DataError, f"model.source {config.model.source}: its tokenizer.json cannot be read ({{cause}})", Exception):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [prompt.text[: most * CHARACTERS_PER_TOKEN + 1] for prompt in prompts]
    lengths = [len(encoding) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    if (shortest := min(lengths)) > most:
        raise DataError(
            f"rollout.max_prompt_tokens: {most} is less than each of the first {len(prompts)} prompts has (the shortest has at "
            f"least {shortest} tokens), so none would be left; raise it"
        )
    return [prompt for prompt, length in zip(prompts, lengths, strict=True) if length <= most]


def _rows(config: RunConfig) -> list[Row]:
    """Return the rows that are looked at: of a file most often all."""
    return read_rows(config.data) if _is_read_whole(config.data) else first_rows(config.data, _most_rows(config))


def _most_rows(config: RunConfig) -> int:
    return MADE if config.data.source.startswith("reasoning_gym:") else max(ROWS, config.rollout.num_prompts_per_step)


def _few_prompts(rows: Sequence[Row], kept: Sequence[Prompt], config: RunConfig) -> Iterator[Line]:
    """Yield the warning that a step has more prompts than there are, where all rows were read.

    Raises:
        DataError: the split would leave a side empty.
    """
    data, asked = config.data, config.rollout.num_prompts_per_step
    if not _is_read_whole(data) and len(rows) == _most_rows(config):
        return
    found = len(kept) - count_held_out(len({repr(prompt.content) for prompt in kept}), data)
    if found < asked and not data.source.startswith("reasoning_gym:"):  # of a task the configuration alone tells
        yield (
            "warnings",
            f"rollout.num_prompts_per_step: {asked} is more than the {found} training prompts of data.source {data.source}: "
            "prompts repeat within a step",
        )


def _is_read_whole(data: DataConfig) -> bool:
    kind, _, name = data.source.partition(":")
    return kind == "file" and (file := file_of(name)).is_file() and file.stat().st_size <= WHOLE_FILE_BYTES


def main() -> None:
    """Read configuration and folders from standard input, and print what is found."""
    exit_with_lifeline()
    gc.disable()  # as in model_check.py, which works beside this
    facts = json.load(sys.stdin)
    import_from(facts["folders"])
    with os.fdopen(os.dup(1), "w") as results:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for line in rehearse(validate_config(facts["config"]), facts["folders"]):
            results.write(json.dumps(line) + "\n")
            results.flush()


if __name__ == "__main__":
    main()
