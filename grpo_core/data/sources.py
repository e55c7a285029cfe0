"""Read raw rows: `reasoning_gym:<task>`, `file:<path>`, `hub:<dataset>`.

Adding a source: one function that returns rows of plain JSON values, one line in `read_rows`, its name in `config/names.py`.
What of a file cannot be taken as it stands is an error with its line: no field is guessed, shifted or left out.
"""

import csv
import itertools
import json
from pathlib import Path
from typing import Any

from grpo_core.config import DataConfig
from grpo_core.data.gym import gym_rows
from grpo_core.data.hub import hub_rows
from grpo_core.errors import DataError, cause, shown
from grpo_core.machine.jsonfile import jsonable, unique_keys

Row = dict[str, Any]

MAX_LEVELS = 50
"""Of lists and objects within each other in a row."""
MAX_FIELD_CHARACTERS = 2**31 - 1


def read_rows(config: DataConfig) -> list[Row]:
    """Return the raw rows of the configured source, at most `data.size` of them.

    Raises:
        DataError: the source cannot be read or holds no rows.
    """
    kind, _, name = config.source.partition(":")
    match kind:
        case "reasoning_gym":
            rows = gym_rows(name, config.task_args, config.size, config.seed)
        case "file":
            rows = _file_rows(file_of(name))
        case _:
            rows = hub_rows(name, config.hub_config, config.hub_split)
    if not rows:
        raise DataError(f"data.source {config.source}: holds no rows; at least 1 is needed")
    return rows[: config.size]


def first_rows(config: DataConfig, count: int) -> list[Row]:
    """Return the first rows of the configured source, without reading or making all of it.

    Args:
        config: of the data.
        count: rows at most; `data.size` where that is fewer.

    Raises:
        DataError: as `read_rows`.
    """
    kind, _, name = config.source.partition(":")
    count = min(count, config.size or count)
    match kind:
        case "reasoning_gym":
            rows = gym_rows(name, config.task_args, count, config.seed)
        case "file":
            rows = _file_rows(file_of(name), count)
        case _:
            rows = hub_rows(name, config.hub_config, config.hub_split, count)
    if not rows:
        raise DataError(f"data.source {config.source}: holds no rows; at least 1 is needed")
    return rows


def file_of(name: str) -> Path:
    """Return the path that follows `file:`, with `~` written out; it need not exist.

    Raises:
        DataError: there can be no such file.
    """
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:  # a name of more than 255 bytes; ~ of an unknown user
        raise DataError(f"data.source {shown(f'file:{name}')}: cannot be a file ({cause(error, 80)})") from error
    return path


def _file_rows(path: Path, count: int | None = None) -> list[Row]:
    readers = {".jsonl": jsonl_rows, ".csv": csv_rows, ".parquet": parquet_rows}
    if path.suffix not in readers:
        raise DataError(f"data.source file:{path}: {path.suffix or 'no'} suffix; readable are {', '.join(sorted(readers))}")
    if path.exists() and not path.is_file():
        what = "is a folder" if path.is_dir() else "is no regular file (a pipe, a socket or a device)"
        raise DataError(f"data.source file:{path}: {what}; give a file")
    if not path.is_file():
        raise DataError(f"data.source file:{path}: no such file; give a path relative to where the command runs")
    try:
        return readers[path.suffix](path, count)
    except Exception as error:  # pyarrow raises a dozen unrelated types for damaged files
        raise DataError(f"data.source file:{path}: cannot be read as {path.suffix}: {cause(error)}") from error


def jsonl_rows(path: Path, count: int | None = None) -> list[Row]:
    """Return one row a line, with values as JSON has them: a data frame would turn some into dates or floats.

    Args:
        path: the file.
        count: rows at most; None = all.

    Raises:
        ValueError: names the line that is no JSON object, gives a key twice, or holds text that is not Unicode.
    """
    # Line ends are kept as they are: text may hold characters such as U+2028, which others take for the end of a line.
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        return [_json_row(number, line) for number, line in itertools.islice(lines, count)]


def _json_row(number: int, line: str) -> Row:
    try:
        row = json.loads(line, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number}: {error}") from error
    if (fault := _fault(row, line)) is not None:
        raise ValueError(f"line {number} {fault}")
    assert isinstance(row, dict)
    return row


def _fault(row: Any, line: str) -> str | None:
    """Return what is wrong with a row; the costly questions are asked only where the line gives reason to."""
    if not isinstance(row, dict):
        return f"is a {type(row).__name__}, not an object"
    if line.count("[") + line.count("{") > MAX_LEVELS and _levels(row) > MAX_LEVELS:
        return f"is nested too deeply (more than {MAX_LEVELS} levels)"
    if "\\ud" in line.lower():
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair, which is no text"
    return None


def _levels(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if items is None else 1 + max(map(_levels, items), default=0)


def csv_rows(path: Path, count: int | None = None) -> list[Row]:
    """Return one row a record, at most `count` of them; every value is text.

    Raises:
        ValueError: names the line of a record that has more or fewer fields than the header.
        csv.Error: quotes are not closed.
    """
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        _refuse_doubles(header)
        rows = []
        for record in reader:
            if record and len(record) != len(header):
                raise ValueError(f"line {reader.line_num} has {len(record)} fields, the header has {len(header)}")
            rows += [dict(zip(header, record, strict=True))] if record else []  # an empty line has no fields
            if len(rows) == count:
                break
    return rows


def parquet_rows(path: Path, count: int | None = None) -> list[Row]:
    """Return one row a row of the table, at most `count` of them, with values as JSON has them.

    Raises:
        ValueError: two columns have the same name.
        Exception: many types, where the file is damaged.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        _refuse_doubles(file.schema_arrow.names)
        rows = (row for batch in file.iter_batches(count or 65_536) for row in batch.to_pylist())
        return [jsonable(row) for row in itertools.islice(rows, count)]


def _refuse_doubles(names: list[str]) -> None:
    if doubles := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two columns are called {doubles[0][:60]!r}")
