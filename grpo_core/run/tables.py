"""A journal as tables, and the tables of completions that it vouches for."""

from collections.abc import Sequence
from pathlib import Path

import pandas

from grpo_core.errors import JournalError, raised_as
from grpo_core.run.journal import Record
from grpo_core.types import SCHEDULE

SYNC_COLUMNS: dict[str, type[int] | type[float] | type[str]] = {
    "step": int,
    "alpha": float,
    "sync_count": int,
    "kl_before": float,
    "kl_after": float,
    "param_distance": float,
    "cause": str,
}
OF_ADAPTERS = ("compression_error", "compression_bound")
"""Columns more where the reference is an average of adapters."""


def read_table(file: Path) -> pandas.DataFrame | None:
    """Return a table of completions; None where the file is missing or damaged."""
    try:
        return pandas.read_parquet(file)
    except (OSError, ValueError, LookupError, TypeError, NotImplementedError):  # pyarrow's errors are of these
        return None


def step_table(records: Sequence[Record]) -> pandas.DataFrame:
    """Return one row a step, one column a metric key, indexed by step."""
    rows = {record.step: dict(record.metrics) for record in records if record.kind == "step"}
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("step").sort_index()


def sync_table(records: Sequence[Record]) -> pandas.DataFrame:
    """Return one row a reference sync: step, alpha, sync_count, kl_before, kl_after, param_distance, cause.

    Where the reference is an average of adapters, also compression_error and compression_bound.

    Raises:
        JournalError: the record of a sync lacks one of them.
    """
    syncs = [record for record in records if record.kind == "ref_sync"]
    columns = SYNC_COLUMNS | {name: float for name in OF_ADAPTERS if any(name in record.data for record in syncs)}
    fault = f"journal: a ref_sync record holds {', '.join(columns)} ({{cause}})"
    with raised_as(JournalError, fault, LookupError, TypeError, ValueError):
        rows = [{"cause": SCHEDULE, **record.data} for record in syncs]
        return pandas.DataFrame(rows, columns=list(columns)).astype(columns)  # NaN and infinities, too: they are text in it
