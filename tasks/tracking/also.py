"""Trackers beside MLflow (`tracking.also`): the shipper feeds each in a thread of its own, and none can hold up a run.

A session hands over the whole journal, the first record of each step and evaluation, so that a tracker needs no memory of ours:
W&B says how many rows it has, trackio takes no second row of a name, and TensorBoard forgets earlier sessions at a mark. A
session without a new record is not opened: `also.json` in the run's folder says how many records each tracker has in full.
"""

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from grpo_core.config import RunConfig
from grpo_core.config.origin import flatten
from grpo_core.errors import cause
from grpo_core.machine.disk import read_json, write_json
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record
from grpo_core.run.reproduction import identity
from tasks.tracking.store import TrackedRun

FINISH_SECONDS = 20.0
"""How long W&B may take to begin, and to send what is left at the end of a session; then the session has failed."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The run that is tracked: `group` is its sweep, `settings` its configuration under MLflow's names of parameters."""

    folder: Path
    id: str
    name: str
    project: str
    group: str | None
    config: RunConfig
    settings: dict[str, Any]


class Tracker(Protocol):
    """One session of a tracker, opened by its constructor: `log` takes the records in order, each once.

    `place` says where to look; `close` returns once everything has arrived, or raises.
    """

    place: str

    def log(self, record: Record) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class _WeightsAndBiases:
    """A row's number in W&B is its place in the journal: the rows that W&B has already are not sent again."""

    def __init__(self, run: Subject) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or run.project,
            id=run.id,
            name=run.name[:128],
            group=run.group,
            tags=[f"{key}:{value}"[:64] for key, value in run.config.tracking.labels.items()],
            config=run.config.model_dump(mode="json", exclude={"tracking"}),
            dir=str(run.folder),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,  # else it sends the diff of the code, whatever `tracking.git_diff` says
                disable_code=True,
                init_timeout=FINISH_SECONDS,
                finish_timeout=FINISH_SECONDS,
                finish_timeout_raises=True,
            ),
        )
        self._run.define_metric("*", step_metric="progress/step")
        self._number, self._held = 0, self._run.step
        sync = f"offline; `wandb sync {Path(self._run.dir).parent}` sends it"
        self.place = sync if self._run.offline else str(self._run.url)

    def log(self, record: Record) -> None:
        if self._number >= self._held:
            times = {"progress/step": record.step, "_timestamp": record.timestamp_ms / 1000}
            self._run.log({**record.metrics, **times}, step=self._number)
        self._number += 1

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    """A row in trackio's local database has a name of ours, of which it keeps the first."""

    def __init__(self, run: Subject) -> None:
        from trackio.sqlite_storage import SQLiteStorage  # `trackio.log` makes up the names of rows, and prints

        self._write, self._run = SQLiteStorage.bulk_log, run
        self.place = f"`trackio show --project {run.project}`"

    def log(self, record: Record) -> None:
        self._write(
            self._run.project,
            self._run.name,
            [dict(record.metrics)],
            steps=[record.step],
            timestamps=[record.time],
            config={**self._run.settings, "_Group": self._run.group},
            log_ids=["/".join(map(str, (self._run.id, *identity(record))))],
            run_id=self._run.id,
        )

    def close(self) -> None:
        pass  # each row was written at once


class _TensorBoard:
    """Event files in the run's folder: a session writes all steps again, after a mark at which readers drop earlier ones."""

    def __init__(self, run: Subject) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._file = EventFileWriter(str(run.folder / "tensorboard"), flush_secs=10)
        self._file.add_event(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        plain = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in run.settings.items()}
        self._file.add_event(Event(step=0, summary=hparams_pb(plain, trial_id=run.id)))
        self.place = f"`tensorboard --logdir {run.folder.parent}`"

    def log(self, record: Record) -> None:
        figures = self._summary(value=[self._summary.Value(tag=key, simple_value=one) for key, one in record.metrics.items()])
        self._file.add_event(self._event(wall_time=record.timestamp_ms / 1000, step=record.step, summary=figures))

    def close(self) -> None:
        self._file.close()


TRACKERS: dict[str, Callable[[Subject], Tracker]] = {
    "wandb": _WeightsAndBiases,
    "trackio": _Trackio,
    "tensorboard": _TensorBoard,
}


class Feed:
    """Hands records to one tracker; the first error ends it, and the run continues.

    `error` is what went wrong, empty so far; `news` are lines for whoever watches: where to look, or the error.
    """

    def __init__(self, name: str, run: Subject, marks: dict[str, int], file: Path) -> None:
        """Wait for a record that the tracker does not have, which `marks`, the content of `file`, says."""
        self._name, self._run, self._marks, self._file = name, run, marks, file
        self._queue: SimpleQueue[Record | None] = SimpleQueue()
        self._thread = Thread(target=self._work, daemon=True)
        self._put = 0
        self.error, self.news = "", list[str]()

    def put(self, record: Record) -> None:
        """Take one record of the session."""
        self._queue.put(record)
        self._put += 1
        if self._thread.ident is None and self._put > self._marks.get(self._name, 0):
            self._thread.start()

    def close(self, seconds: float) -> None:
        """End the session; note what the tracker has."""
        if self._thread.ident is None:
            return
        self._queue.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.error = f"{self._name}: has not taken {self._queue.qsize()} records in {seconds:g} s"
        elif not self.error:
            self._marks[self._name] = self._put
            write_json(self._file, self._marks)

    def _work(self) -> None:
        try:
            tracker = TRACKERS[self._name](self._run)
            self.news.append(f"{self._name}: {tracker.place}")
            for record in iter(self._queue.get, None):
                tracker.log(record)
            tracker.close()
        except Exception as error:  # noqa: BLE001  (trackers raise unrelated types; none of them may end a run)
            self.error = f"{self._name}: {cause(error)}"
            self.news.append(f"{self.error}; the training continues without it")


def feeds(run_dir: RunDir, tracked: TrackedRun) -> tuple[Feed, ...]:
    """Return what a run's shipper feeds: one for each tracker of `tracking.also`."""
    config, marks = run_dir.read_config(), dict[str, int]()
    with contextlib.suppress(OSError, ValueError, TypeError):  # there are none; or everything is handed over again
        marks.update(read_json(run_dir.also_file))
    run = Subject(
        folder=run_dir.path.resolve(),
        id=tracked.run_id,
        name=tracked.name,
        project=re.sub(r"[^\w.-]+", "-", config.tracking.experiment)[:100],  # as W&B and trackio let it be called
        group=config.tracking.labels.get("sweep"),
        config=config,
        settings={key: value for key, value in flatten(config).items() if not key.startswith("tracking.")},
    )
    return tuple(Feed(name, run, marks, run_dir.also_file) for name in dict.fromkeys(config.tracking.also))
