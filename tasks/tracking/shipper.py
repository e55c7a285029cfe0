"""Journal records in, batches out, each figure exactly once.

Rows carry the journal's time stamps, and nothing at or below the high-water mark, which is read back from MLflow at the start
and after every error, is sent again. A step that is replayed after a resume is the same step: its first record is sent, once; a
replay with other figures is an alert of the training. The table of reference syncs follows each sync.
"""

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from grpo_core.errors import cause
from grpo_core.run.journal import Record, is_alert, supersede
from grpo_core.run.reproduction import Identity, identity
from grpo_core.text import redact_uri
from tasks.tracking.also import Feed
from tasks.tracking.store import TrackedRun, make_client

logger = logging.getLogger(__name__)

SYNC_TABLE = "ref_syncs"
PAUSE_SECONDS = 10.0
"""Between two writes of the table of syncs: it is written whole, and a reference may be synchronised after every step."""
SHIP_SECONDS = 1.0
MAX_METRICS = 1000
"""MLflow's limit for one log_batch."""
TRAINING_ALERT = "alert.training"
"""The tag of the training's own alerts, such as a damaged checkpoint; those of rules are named after their rule."""
DELETED = "the MLflow run was deleted"
"""What is written to such a run is refused, for good."""
END_SECONDS = 60.0
"""How long the end of a run waits for a tracking server that is away."""


def log_whole_table(client: Any, run_id: str, name: str, table: Any) -> None:
    """Log a data frame to an MLflow run under `tables/`, in the place of an earlier one of that name."""
    path = f"tables/{name}.json"
    if path in {file.path for file in client.list_artifacts(run_id, "tables")}:
        # log_table would append to it; this replaces it, in the same format
        client.log_text(run_id, table.to_json(orient="split", index=False, date_format="iso"), path)
    else:
        client.log_table(run_id, data=table, artifact_file=path)


class Shipper:
    """Collects records and sends them in batches; while the server is away they wait here."""

    def __init__(self, tracked: TrackedRun, also: Sequence[Feed] = ()) -> None:
        """Continue where an earlier shipper of the same run ended; feed other trackers, too."""
        self._tracked, self._also = tracked, also
        self._client = make_client(tracked.uri)
        self._waiting: list[Record] = []
        self._tags: dict[str, str] = {}
        self._syncs: list[Record] = []
        """Syncs, and the resumes that took some of them back."""
        self._has_new_sync = False
        self._next_table = 0.0
        self._marks: dict[str, int] = {}
        self._seen: set[Identity] = set()
        """Steps and evaluations whose first record has come: the one that MLflow gets."""
        self._next_ship = 0.0
        self.last_error = ""
        """What the last attempt to send met; empty if it went well."""

    @property
    def is_deleted(self) -> bool:
        """Whether somebody has deleted the MLflow run: nothing that waits will be sent."""
        return self.last_error == DELETED

    def add(self, record: Record) -> None:
        """Take one record of the whole journal, superseded ones included; it is sent by a later `ship`."""
        if is_alert(record):
            self._tags[TRAINING_ALERT] = str(record.data.get("text"))
        if record.kind in ("ref_sync", "resume", "start"):
            self._syncs.append(record)
            self._has_new_sync = self._has_new_sync or record.kind == "ref_sync"
        if record.metrics and (what := identity(record)) not in self._seen:
            self._seen.add(what)
            self._waiting.append(record)
            for feed in self._also:
                feed.put(record)

    def add_alert(self, rule: str, text: str) -> None:
        """Take one alert of a rule: a tag with the bound that was crossed, the value and the step."""
        self._tags[f"alert.{rule.replace(':', '.')}"] = text

    def ship(self) -> bool:
        """Send what waits, at most about once a second; return whether nothing waits any more. Never raises for an outage."""
        if not (self._waiting or self._tags or self._table_is_due):
            return True
        if time.monotonic() < self._next_ship:
            return False
        self._next_ship = time.monotonic() + SHIP_SECONDS
        try:
            self._send()
        except Exception as error:  # noqa: BLE001  (an outage of any kind: the records wait, training continues)
            self.last_error = redact_uri(f"{type(error).__name__}: {error}")
            with contextlib.suppress(Exception):  # the server is away, too
                if self._client.get_run(self._tracked.run_id).info.lifecycle_stage == "deleted":
                    self.last_error = DELETED
            self._marks.clear()  # a batch whose answer was lost may have arrived
            self._next_ship = time.monotonic() + 5 * SHIP_SECONDS
            return False
        self.last_error = ""
        return True

    def ship_all(self, seconds: float = END_SECONDS) -> int:
        """Send everything, waiting up to `seconds` for a server that is away; return how many records are left."""
        deadline = time.monotonic() + seconds
        while not self.ship() and not self.is_deleted and time.monotonic() < deadline:
            time.sleep(0.2)
        for feed in self._also:
            feed.close(max(1.0, deadline - time.monotonic()))
        return len(self._waiting)

    def _send(self) -> None:
        from mlflow.entities import Metric, RunTag

        from grpo_core.run.curves import sync_table

        fresh = [record for record in self._waiting if record.step > self._mark(record)]
        # A record is never split, so a mark covers all its figures.
        size = MAX_METRICS // max((len(record.metrics) for record in fresh), default=1)
        for start in range(0, len(fresh), size):
            records = fresh[start : start + size]
            self._client.log_batch(
                self._tracked.run_id,
                metrics=[
                    Metric(key, value, record.timestamp_ms, record.step)
                    for record in records
                    for key, value in record.metrics.items()
                ],
            )
            self._marks |= {_mark_key(record): record.step for record in records}
        self._waiting.clear()
        if self._tags:
            self._client.log_batch(self._tracked.run_id, tags=[RunTag(key, text) for key, text in self._tags.items()])
            self._tags.clear()
        if self._table_is_due:
            self._next_table = time.monotonic() + PAUSE_SECONDS
            try:
                log_whole_table(self._client, self._tracked.run_id, SYNC_TABLE, sync_table(supersede(self._syncs)))
                self._has_new_sync = False
            except Exception as error:  # noqa: BLE001  (it does not hold up the figures; mlflow's types differ by store)
                logger.warning("the table of reference syncs is not in MLflow yet (%s)", cause(error))

    @property
    def _table_is_due(self) -> bool:
        return self._has_new_sync and time.monotonic() >= self._next_table

    def _mark(self, record: Record) -> int:
        """Return the last step of this kind of record that MLflow holds, read back once; -1 where it holds none."""
        key = _mark_key(record)
        if key not in self._marks:
            points = self._client.get_metric_history(self._tracked.run_id, key)
            self._marks[key] = max((point.step for point in points), default=-1)
        return self._marks[key]


def _mark_key(record: Record) -> str:
    """Return a key that every record of this kind (of evaluations: of this set) holds."""
    return "progress/step" if record.kind == "step" else f"eval/{record.data['set']}/greedy_accuracy"
