"""Read raw rows: `reasoning_gym:<task>`, `shapes:<task>`, `file:<path>`, `hub:<dataset>`; score an answer as a gym task does.

Adding a source: one function that returns rows of plain JSON values, one line in `read_rows`, its name in `config/names.py`.
What of a file cannot be taken as it stands is an error with its line: no field is guessed, shifted or left out.

Only tasks on `ALLOWED_TASKS` are used. Some scorers of reasoning-gym evaluate the answer as code (`eval`, sympy's parser); a
model's output must never reach those. Others reward wrong answers: `game_of_life_halting` gives every text 1,
`complex_arithmetic` gives it to `nan`; the closeness that `coin_flip` and `game_of_life` reward gives `0` 0.93 and an empty
board 0.96. The list holds the tasks whose whole module names nothing that evaluates text, whose rows, written as JSON and read
back, still give the gold answer the score 1, and whose scorer gives constants and the gold answers of other rows at most 0.6
on average. A contract test checks all three. Two tasks are graded exactly, but most of their gold answers are the same:
`circuit_logic` (61% are 0) and `syllogism` (70% are Yes).
"""

import contextlib
import csv
import itertools
import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic_core import from_json

from grpo_core.config import DataConfig
from grpo_core.config.names import ALLOWED_TASKS, MADE_ROWS
from grpo_core.data.row_images import RowReader, kept_images, undecoded
from grpo_core.data.shapes import shapes_rows
from grpo_core.errors import DataError, cause, name_of, shown
from grpo_core.machine.disk import jsonable
from grpo_core.policy.sources.find import why_hub_is_away

Row = dict[str, Any]


def read_rows(config: DataConfig, count: int | None = None, *, with_images: bool = False) -> list[Row]:
    """Return the raw rows of the configured source, at most `data.size` of them.

    Args:
        config: of the data.
        count: the first so many, without reading or making all; None = all.
        with_images: whether the model reads images: their files are then kept, and a row has `RowImages` in their column.

    Raises:
        DataError: the source cannot be read or holds no rows, or an image cannot be read.
    """
    kind, _, name = config.source.partition(":")
    most = min(filter(None, (count, config.size)), default=None)
    reader = _reader(kind, name, config) if with_images else None
    match kind:
        case "reasoning_gym":
            rows = gym_rows(name, config.task_args, most, config.seed)
        case "shapes":
            made = shapes_rows(name, most or MADE_ROWS, config.seed)
            rows = [jsonable(row) if reader is None else reader.take(row, index) for index, row in enumerate(made)]
        case "file":
            rows = _file_rows(file_of(name), most if count or reader else None, reader)
        case _:
            rows = hub_rows(name, config.hub_config, config.hub_split, most if count or reader else None, reader)
    if not rows:
        raise DataError(f"data.source {config.source}: holds no rows; at least 1 is needed")
    return rows[:most]


def gym_rows(task: str, task_args: dict[str, Any], size: int | None, seed: int) -> list[Row]:
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


def gym_score(task: str, answer: str, row: Row) -> float:
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
def task_scorer(task: str) -> Callable[[str, Row], float]:
    """Return a task's scorer, made once: that builds a data set, a fifth of a second for those with a dictionary."""
    import reasoning_gym

    _check_allowed(task)
    return cast("Callable[[str, Row], float]", reasoning_gym.get_score_answer_fn(task))


def _check_allowed(task: str) -> None:
    if task not in ALLOWED_TASKS:
        raise DataError(
            f"data.source reasoning_gym:{name_of(task)}: not on the allow-list (its scorer may run model output as code or "
            f"rewards wrong answers, or is not known); allowed: {', '.join(sorted(ALLOWED_TASKS))}"
        )


def _reader(kind: str, name: str, config: DataConfig) -> RowReader:
    """Return what reads images of rows: below the folder of a file, or in the caches of the hub's clients."""
    if kind == "hub":
        from huggingface_hub import constants

        return RowReader(config, kept_images(config), Path(constants.HF_HOME), takes_absolute=True)
    return RowReader(config, kept_images(config), file_of(name).parent)


def hub_rows(
    name: str, config_name: str | None, split: str, count: int | None = None, reader: RowReader | None = None
) -> list[Row]:
    """Return the rows of a data set of the hub.

    The client asks again for half a minute, with a warning each time, before it looks into its cache; where one short request
    finds no hub, it is sent to its cache at once.

    Args:
        name: `owner/name`.
        config_name: `data.hub_config`.
        split: `data.hub_split`.
        count: the first so many rows, which are not stored; None = all.
        reader: of images, where the model reads them.

    Raises:
        DataError: it cannot be loaded; the message says whether the hub was reached.
    """
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if name in _PACKAGED_DATASETS_MODULES:  # it would read whatever files lie in the current folder
        raise DataError(f"data.source hub:{name}: is a format of files and no data set of a hub; give file:<path>")
    reason = None if os.path.isdir(name) else why_hub_is_away()  # noqa: PTH112  (a name of more than 255 bytes is no error to it)
    try:
        with _offline() if reason else contextlib.nullcontext():
            # Streamed, only what is asked for is fetched; the cache holds nothing that could be.
            rows = datasets.load_dataset(name, config_name, split=split, streaming=count is not None and reason is None)
            taken = itertools.islice(rows if reader is None else undecoded(rows), count)
            return [jsonable(dict(row)) if reader is None else reader.take(row, index) for index, row in enumerate(taken)]
    except DataError:
        raise
    except Exception as error:  # the hub client raises many unrelated types: offline, 404, gated, bad configuration
        away = f"the hub cannot be reached ({reason}), and this machine's cache of it does not hold the data set"
        raise DataError(
            f"data.source hub:{name} (data.hub_config {config_name}, data.hub_split {split}): cannot be loaded: "
            f"{away if reason else f'{type(error).__name__}: {cause(error)}'}; check name and network, or give file:<path>"
        ) from error


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Keep the hub's clients from the network while inside, as HF_HUB_OFFLINE does for a whole process."""
    import datasets.config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def file_of(name: str) -> Path:
    """Return the path that follows `file:`, with `~` written out; it need not exist."""
    return Path(name).expanduser()


def _file_rows(path: Path, count: int | None, reader: RowReader | None = None) -> list[Row]:
    parquet = _parquet_rows if reader is None else _parquet_values
    readers = {".jsonl": _jsonl_rows, ".csv": _csv_rows, ".parquet": parquet}
    if path.suffix not in readers:
        raise DataError(f"data.source file:{path}: {path.suffix or 'no'} suffix; readable are {', '.join(sorted(readers))}")
    if not path.is_file():  # opening a pipe would wait for ever
        raise DataError(f"data.source file:{path}: no such file; give a path from the configuration or the working folder")
    try:
        rows = itertools.islice(readers[path.suffix](path), count)
        return list(rows) if reader is None else [reader.take(row, index) for index, row in enumerate(rows)]
    except DataError:
        raise
    except Exception as error:  # pyarrow raises a dozen unrelated types for damaged files
        raise DataError(f"data.source file:{path}: cannot be read as {path.suffix}: {cause(error)}") from error


def _jsonl_rows(path: Path) -> Iterator[Row]:
    """Yield one row a line, with values as JSON has them: a data frame would turn some into dates or floats."""
    # Line ends are kept as they are: text may hold characters such as U+2028, which others take for the end of a line.
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = from_json(line)  # refuses halves of surrogate pairs, which no text file can hold
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is a {type(row).__name__}, not an object")
            yield row


def _csv_rows(path: Path) -> Iterator[Row]:
    """Yield one row a record; every value is text. A record of more or fewer fields than the header is an error."""
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        _refuse_doubles(header)
        for record in filter(None, reader):  # an empty line has no fields
            if len(record) != len(header):
                raise ValueError(f"line {reader.line_num} has {len(record)} fields, the header has {len(header)}")
            yield dict(zip(header, record, strict=True))


def _parquet_rows(path: Path) -> Iterator[Row]:
    """Yield one row a row of the table, with values as JSON has them."""
    return map(jsonable, _parquet_values(path, 65_536))


def _parquet_values(path: Path, at_once: int = 16) -> Iterator[Row]:
    """Yield one row a row of the table, so many of them in memory: a row may hold images."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        _refuse_doubles(file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=at_once):
            yield from batch.to_pylist()


def _refuse_doubles(names: list[str]) -> None:
    if doubles := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two columns are called {doubles[0][:60]!r}")
