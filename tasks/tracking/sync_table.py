"""The table of a run's reference syncs in MLflow, written anew after each sync; the end of the run writes it once more."""

import logging
import time
from typing import TYPE_CHECKING, Any

from grpo_core.errors import cause
from grpo_core.run.journal import Record, supersede

if TYPE_CHECKING:
    import pandas

logger = logging.getLogger(__name__)

NAME = "ref_syncs"
PAUSE_SECONDS = 10.0
"""Between two writes: the table is written whole, and a reference may be synchronised after every step."""


class SyncTable:
    """Collects the records of syncs and writes them as one table."""

    def __init__(self, client: Any, run_id: str) -> None:
        """Write to an MLflow run."""
        self._client, self._run_id = client, run_id
        self._syncs: list[Record] = []
        self._is_new = False
        self._next_write = 0.0

    def add(self, record: Record) -> None:
        """Take one record of the journal, superseded ones included; others than syncs and resumes are ignored."""
        if record.kind == "ref_sync":
            self._syncs.append(record)
            self._is_new = True
        elif record.kind in ("resume", "start"):  # the steps after it are repeated, and their syncs with them
            self._syncs = supersede([*self._syncs, record])[:-1]

    @property
    def is_due(self) -> bool:
        """Whether there is a sync that MLflow does not show, and the last write was long enough ago."""
        return self._is_new and time.monotonic() >= self._next_write

    def send(self) -> None:
        """Write the table; one that cannot be written does not hold up the figures, and is tried again."""
        from grpo_core.run.tables import sync_table

        self._next_write = time.monotonic() + PAUSE_SECONDS
        try:
            log_whole_table(self._client, self._run_id, NAME, sync_table(self._syncs))
            self._is_new = False
        except Exception as error:  # noqa: BLE001  (mlflow raises unrelated types for each store)
            logger.warning("the table of reference syncs is not in MLflow yet (%s)", cause(error))


def log_whole_table(client: Any, run_id: str, name: str, table: "pandas.DataFrame") -> None:
    """Log a table to an MLflow run under `tables/`, in the place of an earlier one of that name."""
    path = f"tables/{name}.json"
    if path in {file.path for file in client.list_artifacts(run_id, "tables")}:
        # log_table would append to it; this replaces it, in the same format
        client.log_text(run_id, table.to_json(orient="split", index=False, date_format="iso"), path)
    else:
        client.log_table(run_id, data=table, artifact_file=path)
