"""A journal as tables."""

from collections.abc import Sequence

import pandas

from grpo_core.journal import Record


def step_table(records: Sequence[Record]) -> pandas.DataFrame:
    """Return one row a step, one column a metric key, indexed by step."""
    rows = {record.step: dict(record.metrics) for record in records if record.kind == "step"}
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("step").sort_index()


def sync_table(records: Sequence[Record]) -> pandas.DataFrame:
    """Return one row a reference sync: step, alpha, sync_count, kl_before, kl_after, param_distance."""
    columns = ["step", "alpha", "sync_count", "kl_before", "kl_after", "param_distance"]
    table = pandas.DataFrame([record.data for record in records if record.kind == "ref_sync"], columns=columns)
    # The journal writes NaN and infinities as text.
    return table.astype(float).astype({"step": int, "sync_count": int})
