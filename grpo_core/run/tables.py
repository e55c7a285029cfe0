"""A journal as tables."""

from collections.abc import Sequence

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


def step_table(records: Sequence[Record]) -> pandas.DataFrame:
    """Return one row a step, one column a metric key, indexed by step."""
    rows = {record.step: dict(record.metrics) for record in records if record.kind == "step"}
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("step").sort_index()


def sync_table(records: Sequence[Record]) -> pandas.DataFrame:
    """Return one row a reference sync: step, alpha, sync_count, kl_before, kl_after, param_distance, cause.

    Raises:
        JournalError: the record of a sync lacks one of them.
    """
    return pandas.DataFrame(
        [_sync(record) for record in records if record.kind == "ref_sync"], columns=list(SYNC_COLUMNS)
    ).astype(SYNC_COLUMNS)


def _sync(record: Record) -> dict[str, float | str]:
    fault = f"journal, line {record.seq + 1}: a ref_sync holds {', '.join(SYNC_COLUMNS)} ({{cause}})"
    data = {"cause": SCHEDULE, **record.data}  # an earlier version knew no other
    with raised_as(JournalError, fault, LookupError, TypeError, ValueError, OverflowError):
        # The journal writes NaN and infinities as text.
        return {name: str(data[name]) if kind is str else kind(float(data[name])) for name, kind in SYNC_COLUMNS.items()}
