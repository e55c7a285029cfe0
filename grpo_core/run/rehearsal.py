"""A process that reads the first rows of a run's data and calls its reward functions on some of them.

`python -m grpo_core.run.rehearsal DESCRIPTOR < facts.json`: what it finds is written as JSON lines to a descriptor of its own,
since code of users prints what it likes. It is a process because that code may take for ever, crash or end the process.
"""

import importlib
import itertools
import json
import os
import sys
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
from grpo_core.run.doubts import doubtful_answers, why_not_callable
from grpo_core.run.imports import import_from
from grpo_core.run.prompt_check import look_at_prompts
from grpo_core.types import Prompt

ROWS, WHOLE_FILE_BYTES = 1000, 64_000_000
"""How many rows are looked at, of a file that is larger than that and of a hub's data set; all are, when they are frozen."""
MADE = 20
"""How many rows of a reasoning-gym task, each of which a program makes."""
CALLED_WITH = 8
"""How many rows a reward function is called with."""


def rehearse(config: RunConfig, folders: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield what is about to be done (`doing`), what is wrong (`fault`), doubtful (`warning`) or worth a look (`note`)."""
    yield {"doing": f"data.source {config.data.source}"}
    try:
        rows = _rows(config)
        check_rows(rows, config.data)
        prompts = untokenized(rows, config)
        kept = short_enough(prompts, config)
        yield from _few_prompts(rows, kept, config)
        yield from look_at_prompts(rows[:ROWS], config)
    except GrpoError as error:
        yield {"fault": str(error)}
        return
    yield from ({"warning": text} for text in doubtful_answers(prompts, config))
    for index, reward in enumerate(config.rewards):
        yield {"doing": f"rewards.{index}.fn {reward.fn}"}
        try:
            for text in dry_run(index, config, prompts[:CALLED_WITH], folders):
                yield {"warning": text}
        except RewardError as error:
            yield {"fault": str(error)}
        except SystemExit as error:
            yield {"fault": f"rewards.{index}.fn {reward.fn}: ended its process with sys.exit({cause(error)})"}
    yield from _rule_faults(config)


def _rule_faults(config: RunConfig) -> Iterator[dict[str, str]]:
    """Yield the functions of rules that cannot be imported; none is called, as there is no figure yet."""
    for index, name in ((index, rule.function) for index, rule in enumerate(config.monitor.rules) if rule.function is not None):
        what, (module, _, attribute) = f"monitor.rules.{index}.function {name}", name.partition(":")
        yield {"doing": what}
        try:
            function = getattr(importlib.import_module(module), attribute)
            fault = why_not_callable(function, config.monitor.rules[index]) if callable(function) else "is no function"
            if fault is not None:
                yield {"fault": f"{what}: {fault}"}
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's module raises whatever it does when it is imported)
            yield {"fault": f"{what}: cannot be imported: {type(error).__name__}: {cause(error)}"}


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


def _few_prompts(rows: Sequence[Row], kept: Sequence[Prompt], config: RunConfig) -> Iterator[dict[str, str]]:
    """Yield the warning that a step has more prompts than there are, where all rows were read.

    Raises:
        DataError: the split would leave a side empty.
    """
    data, asked = config.data, config.rollout.num_prompts_per_step
    if not _is_read_whole(data) and len(rows) == _most_rows(config):
        return
    found = len(kept) - count_held_out(len({repr(prompt.content) for prompt in kept}), data)
    if found < asked and not data.source.startswith("reasoning_gym:"):  # of a task the configuration alone tells
        yield {
            "warning": f"rollout.num_prompts_per_step: {asked} is more than the {found} training prompts of data.source "
            f"{data.source}: prompts repeat within a step"
        }


def _is_read_whole(data: DataConfig) -> bool:
    kind, _, name = data.source.partition(":")
    return kind == "file" and (file := file_of(name)).is_file() and file.stat().st_size <= WHOLE_FILE_BYTES


def main(descriptor: int) -> None:
    """Read configuration and folders from standard input, and write what is found to a descriptor."""
    exit_with_lifeline()
    facts = json.load(sys.stdin)
    import_from(facts["folders"])
    with os.fdopen(descriptor, "w") as results:
        for line in itertools.chain(rehearse(validate_config(facts["config"]), facts["folders"]), [{"done": ""}]):
            results.write(json.dumps(line) + "\n")
            results.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
