"""Read raw rows: `reasoning_gym:<task>`, `file:<path>`, `hub:<dataset>`.

Adding a source: one function that returns rows, one line in `read_rows`.
"""

from pathlib import Path

from grpo_core.config import DataConfig
from grpo_core.data.files import Row, csv_rows, jsonl_rows, parquet_rows
from grpo_core.data.gym import gym_rows
from grpo_core.errors import DataError, cause, shown


def read_rows(config: DataConfig) -> list[Row]:
    """Return the raw rows of the configured source, at most `data.size` of them.

    Raises:
        DataError: the source cannot be read or holds no rows.
    """
    kind, separator, name = config.source.partition(":")
    if not separator or not name:
        raise DataError(f"data.source {shown(config.source)}: expected reasoning_gym:<task>, file:<path> or hub:<dataset>")
    if kind == "reasoning_gym":
        rows = gym_rows(name, config.task_args, config.size, config.seed)
    elif kind == "file":
        rows = _file_rows(file_of(name))
    elif kind == "hub":
        rows = _hub_rows(name, config)
    else:
        raise DataError(f"data.source {shown(config.source)}: {shown(kind)} is none of reasoning_gym, file, hub")
    if not rows:
        raise DataError(f"data.source {config.source}: holds no rows; at least 1 is needed")
    return rows[: config.size]


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


def _file_rows(path: Path) -> list[Row]:
    readers = {".jsonl": jsonl_rows, ".csv": csv_rows, ".parquet": parquet_rows}
    if path.suffix not in readers:
        raise DataError(f"data.source file:{path}: {path.suffix or 'no'} suffix; readable are {', '.join(sorted(readers))}")
    if not path.is_file():
        raise DataError(f"data.source file:{path}: no such file; give a path relative to where the command runs")
    try:
        return readers[path.suffix](path)
    except Exception as error:  # pandas and pyarrow raise a dozen unrelated types for damaged files
        raise DataError(f"data.source file:{path}: cannot be read as {path.suffix}: {cause(error)}") from error


def _hub_rows(name: str, config: DataConfig) -> list[Row]:
    import datasets

    try:
        dataset = datasets.load_dataset(name, config.hub_config, split=config.hub_split)
    except Exception as error:  # the hub client raises many unrelated types: offline, 404, gated, bad configuration
        raise DataError(
            f"data.source hub:{name} (data.hub_config {config.hub_config}, data.hub_split {config.hub_split}): cannot be "
            f"loaded ({type(error).__name__}: {cause(error)}); check the name, or give file:<path>"
        ) from error
    return [dict(row) for row in dataset]
