"""Read raw rows: `reasoning_gym:<task>`, `file:<path>`, `hub:<dataset>`.

Adding a source: one function that returns rows, one line in `read_rows`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_core.config import DataConfig
from grpo_core.data.gym import gym_rows
from grpo_core.errors import DataError

Row = dict[str, Any]


def read_rows(config: DataConfig) -> list[Row]:
    """Return the raw rows of the configured source, at most `data.size` of them.

    Raises:
        DataError: the source cannot be read or holds no rows.
    """
    kind, separator, name = config.source.partition(":")
    if not separator or not name:
        raise DataError(f"data.source {config.source!r}: expected reasoning_gym:<task>, file:<path> or hub:<dataset>")
    if kind == "reasoning_gym":
        rows = gym_rows(name, config.task_args, config.size, config.seed)
    elif kind == "file":
        rows = _file_rows(Path(name).expanduser())
    elif kind == "hub":
        rows = _hub_rows(name, config)
    else:
        raise DataError(f"data.source {config.source!r}: {kind!r} is none of reasoning_gym, file, hub")
    if not rows:
        raise DataError(f"data.source {config.source}: holds no rows; at least 1 is needed")
    return rows[: config.size]


def _file_rows(path: Path) -> list[Row]:
    import pandas

    readers: dict[str, Callable[[], list[dict[Any, Any]]]] = {
        ".jsonl": lambda: _jsonl_rows(path),
        ".parquet": lambda: pandas.read_parquet(path).to_dict("records"),
        ".csv": lambda: pandas.read_csv(path, dtype=str, keep_default_na=False).to_dict("records"),
    }
    if path.suffix not in readers:
        raise DataError(f"data.source file:{path}: {path.suffix or 'no'} suffix; readable are {', '.join(sorted(readers))}")
    if not path.is_file():
        raise DataError(f"data.source file:{path}: no such file; give a path relative to where the command runs")
    try:
        rows = readers[path.suffix]()
    except (ValueError, OSError, pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
        raise DataError(f"data.source file:{path}: cannot be read as {path.suffix}: {error}") from error
    return [{str(key): value for key, value in row.items()} for row in rows]


def _jsonl_rows(path: Path) -> list[Row]:
    """Return one row a line, with values as JSON has them: a data frame would turn some into dates or floats."""
    rows = []
    # Not splitlines(): text may hold characters such as U+2028, which it takes for the end of a line.
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is a {type(row).__name__}, not an object")
        rows.append(row)
    return rows


def _hub_rows(name: str, config: DataConfig) -> list[Row]:
    import datasets

    try:
        dataset = datasets.load_dataset(name, config.hub_config, split=config.hub_split)
    except Exception as error:  # the hub client raises many unrelated types: offline, 404, gated, bad configuration
        message = str(error).strip().splitlines() or ["no message"]
        raise DataError(
            f"data.source hub:{name} (data.hub_config {config.hub_config}, data.hub_split {config.hub_split}): cannot be "
            f"loaded ({type(error).__name__}: {message[0]}); check the name, or give file:<path>"
        ) from error
    return [dict(row) for row in dataset]
