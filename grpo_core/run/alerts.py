"""The alerts of a run, one story from two writers: the training's are records of its journal, the monitor's lie beside it."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from grpo_core.errors import JournalError, raised_as
from grpo_core.machine.jsonfile import append_json, read_lines
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record


@dataclass(frozen=True, kw_only=True)
class RaisedAlert:
    """An alert that was raised, as alerts.jsonl holds it."""

    step: int
    text: str


def add_alert(run_dir: RunDir, step: int, text: str) -> None:
    """Append an alert of the monitor to alerts.jsonl; the journal itself has one writer, the training.

    Raises:
        OSError: it cannot be written.
    """
    append_json(run_dir.alerts_file, asdict(RaisedAlert(step=step, text=text)))


def monitor_alerts(run_dir: RunDir) -> list[RaisedAlert]:
    """Return the monitor's alerts, oldest first; a torn last line is dropped.

    Raises:
        JournalError: a whole line is no alert.
    """
    file = run_dir.alerts_file
    with raised_as(JournalError, f"{file}: a line is not an alert ({{cause}})", ValueError, TypeError):
        return [RaisedAlert(**json.loads(line)) for line in read_lines(file)]


def all_alerts(run_dir: RunDir, history: Iterable[Record]) -> tuple[str, ...]:
    """Return every alert of a run in the order of the steps; of one step, those of the training's journal first.

    Raises:
        JournalError: as `monitor_alerts`.
    """
    of_training = [RaisedAlert(step=record.step, text=str(record.data.get("text"))) for record in history if is_alert(record)]
    return tuple(alert.text for alert in sorted([*of_training, *monitor_alerts(run_dir)], key=lambda alert: alert.step))


def is_alert(record: Record) -> bool:
    """Return whether a record is an alert of the training; that its journal was repaired is a note."""
    return record.kind == "alert" and "repaired" not in record.data
