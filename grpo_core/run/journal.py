"""The journal of a run: one JSON line an event, flushed and fsynced before it counts. It is the truth; the rest are views.

A record is {"seq", "time", "kind", "step", "data"}. Each checkpoint holds the SHA-256 of the journal's bytes so far, by which
`integrity.py` finds a line that was changed. Two rules turn lines into history, and both live here:

1. A last line that is torn (the process died while writing it) is dropped.
2. A `resume` record at step k supersedes earlier records of steps > k: they happened, and the run went back behind them. So
   does a `start` record, at step 0: the run died before its first checkpoint and began again.
"""

import contextlib
import hashlib
import json
import math
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from grpo_core.errors import DiskFullError, JournalError, cause
from grpo_core.machine.disk import durable_folder, flush, is_full_disk
from grpo_core.machine.locks import locked_soon
from grpo_core.metrics import find_metric

Kind = Literal["start", "step", "ref_sync", "checkpoint", "eval", "alert", "resume", "end"]
JOURNAL_FILE = "journal.jsonl"
INHERITED = "inherited"
"""In the data of a record that a fork has of its parent."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One event.

    Example: Record(seq=12, time="2026-01-01T10:00:00+00:00", kind="step", step=11, data={"metrics": {"kl/ref/drift": 0.02}}).
    """

    seq: int
    """Position in the journal, from 0."""
    time: str
    """ISO-8601 with time zone."""
    kind: Kind
    step: int
    """The step it belongs to; 0 before the first."""
    data: Mapping[str, Any]
    """`step` and `eval` records hold {"metrics": {key: number}}; the others what their kind needs."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The figures of a `step` or `eval` record, empty for other kinds."""
        values: Mapping[str, float] = self.data.get("metrics", {})
        return values

    @property
    def timestamp_ms(self) -> int:
        """`time` as milliseconds since 1970, as MLflow wants it."""
        return round(datetime.fromisoformat(self.time).timestamp() * 1000)


_RECORD = TypeAdapter(Record)


def now() -> str:
    """Return the time as a record holds it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def encode(record: Record) -> bytes:
    """Return the line of a record, with its newline."""
    fields = {"seq": record.seq, "time": record.time, "kind": record.kind, "step": record.step, "data": finite(record.data)}
    return json.dumps(fields, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def finite(value: Any) -> Any:
    """Write NaN and infinities, for which JSON has no numbers, as the texts nan, inf and -inf."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def decode_record(line: bytes) -> Record:
    """Return the record of one line; its number is not checked.

    Raises:
        ValueError: it is no journal record.
    """
    record = _RECORD.validate_python(json.loads(line))
    if "metrics" not in record.data:
        return record
    metrics = {key: float(value) for key, value in record.data["metrics"].items()}  # NaN and infinities were written as text
    return replace(record, data={**record.data, "metrics": metrics})


class DamagedJournalError(JournalError):
    """A journal is not as it was written: refused with the way out."""

    def __init__(self, path: Path, fault: str, line: int, resumes_from: str = "its last intact checkpoint") -> None:
        """Name what is wrong with the journal at `path`, the first line that `--repair cut` drops, and where it resumes."""
        command = f"grpo train --resume {shlex.quote(str(path.parent))} --repair cut"
        super().__init__(f"{path}, {fault}; `{command}` drops line {line} and what follows, and resumes from {resumes_from}")


class Journal:
    """Appends records to a file; the file is locked until it is closed, so that it has one writer at a time.

    `last_step` is the furthest step of the records that were appended.
    """

    def __init__(self, path: Path) -> None:
        """Open `path` for appending, after dropping a torn last line.

        Raises:
            JournalError: another process is writing it, or a line of it is damaged: nothing is added to such a journal.
        """
        self._path = path
        durable_folder(path.parent)
        self._file = path.open("ab", buffering=0)  # a buffer would hand on later what could not be written now
        flush(path.parent)  # its name, if it is new
        # Before anything is read: a line that another process is just writing looks torn.
        locked_soon(
            self._file,
            JournalError,
            f"run dir {path.parent}: {{holder}} is writing its journal; wait for it, end it, or give another --run-dir",
        )
        content = path.read_bytes()
        try:
            records, self._whole_bytes = _whole_records(path, content)
        except JournalError:
            self._file.close()
            raise
        self._number = len(records)
        self._file.truncate(self._whole_bytes)
        self._sum = hashlib.sha256(content[: self._whole_bytes])
        self._one_at_a_time = threading.Lock()  # a checkpoint is journalled by the thread that wrote it
        self.last_step = 0

    @property
    def mark(self) -> tuple[int, str]:
        """(number of bytes, their SHA-256): what a checkpoint keeps to know its journal by."""
        return self._whole_bytes, self._sum.hexdigest()

    def append(self, kind: Kind, step: int, data: Mapping[str, Any]) -> Record:
        """Write one record; it is on disk when this returns.

        Raises:
            JournalError: a metric key is not in the registry.
            DiskFullError: the disk is full.
        """
        if unknown := sorted(key for key in data.get("metrics", {}) if find_metric(key) is None):
            raise JournalError(f"metric keys not in the registry (grpo_core/metrics.py): {', '.join(unknown)}")
        with self._one_at_a_time:
            record = Record(seq=self._number, time=now(), kind=kind, step=step, data=data)
            self._write(encode(record), f"the record {kind!r} of step {step}")
            self._number += 1
            self.last_step = max(self.last_step, step)
        return record

    def _write(self, line: bytes, what: str) -> None:
        """Write one line to the disk, or nothing of it: a part would spoil the next line."""
        try:
            written = 0
            while written < len(line):  # a disk that is nearly full takes a part
                written += self._file.write(line[written:]) or 0
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._whole_bytes)
            if is_full_disk(error):
                raise DiskFullError(f"disk full: {what} could not be written to {self._path}") from error
            raise
        self._whole_bytes += len(line)
        self._sum.update(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path) -> list[Record]:
    """Return the history of a run: all records that both rules leave.

    Raises:
        JournalError: there is no such file, a whole line cannot be read, or lines are missing, doubled or out of order.
    """
    return supersede(read_records(path))


def read_records(path: Path) -> list[Record]:
    """Return every record of a run, those included that a `resume` superseded.

    Raises:
        JournalError: as `read_journal`.
    """
    if not path.exists():
        raise JournalError(f"{path}: no journal there; give the RUN_DIR of a run that has started")
    return JournalTail(path).read()


def supersede(records: list[Record]) -> list[Record]:
    """Apply rule 2: drop what a later `resume` or `start` record took back.

    >>> make = lambda seq, kind, step: Record(seq=seq, time="", kind=kind, step=step, data={})
    >>> [r.seq for r in supersede([make(0, "step", 1), make(1, "step", 2), make(2, "resume", 1), make(3, "step", 2)])]
    [0, 2, 3]
    """
    history: list[Record] = []
    for record in records:
        if record.kind in ("resume", "start"):
            history = [earlier for earlier in history if earlier.step <= record.step]
        history.append(record)
    return history


def is_alert(record: Record) -> bool:
    """Return whether a record is an alert of the training; that its journal was repaired is a note."""
    return record.kind == "alert" and "repaired" not in record.data


def is_inherited(record: Record) -> bool:
    """Return whether a record is of the run from which this one was forked."""
    return bool(record.data.get(INHERITED))


def last_event(history: Sequence[Record]) -> Record | None:
    """Return the last record of a beginning, a resume or an end of the run; None where there is none."""
    return next((record for record in reversed(history) if record.kind in ("start", "resume", "end")), None)


class JournalTail:
    """Reads a journal that another process is writing, each whole line once."""

    def __init__(self, path: Path) -> None:
        """Start at the beginning of `path`, which need not exist yet."""
        self._path = path
        self._offset = self._number = 0

    def read(self) -> list[Record]:
        """Return the records that have been completed since the last call.

        Raises:
            DamagedJournalError: a line is no record, or not the next one.
        """
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            records, num_bytes = _whole_records(self._path, file.read(), self._number)
        self._offset += num_bytes
        self._number += len(records)
        return records


def _whole_records(path: Path, content: bytes, first: int = 0) -> tuple[list[Record], int]:
    records, num_bytes, fault = parse_lines(content, first)
    if fault is not None:
        raise DamagedJournalError(path, fault, first + len(records) + 1)
    return records, num_bytes


def parse_lines(content: bytes, first: int = 0) -> tuple[list[Record], int, str | None]:
    """Return the records before the first damaged line, their bytes, and what is wrong with that line; a torn line is left out.

    Args:
        content: of a journal, or of its end.
        first: number of the first line, from 0.
    """
    records: list[Record] = []
    num_bytes = 0
    while end := content.find(b"\n", num_bytes) + 1:
        expected = first + len(records)
        try:
            record = decode_record(content[num_bytes : end - 1])
            if record.seq != expected:
                raise ValueError(f"seq is {record.seq}, expected {expected}: a line is missing, doubled or out of order")
        except (ValueError, TypeError, AttributeError) as error:
            return records, num_bytes, f"line {expected + 1}: not a journal record ({cause(error)})"
        records.append(record)
        num_bytes = end
    return records, num_bytes, None
