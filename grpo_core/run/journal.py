"""The journal of a run: one JSON line an event, flushed and fsynced before it counts. It is the truth; the rest are views.

A record is {"seq", "time", "kind", "step", "data", "digest"}; the digests are a chain (`journal_chain.py`), so that a line that
was changed, added or removed is refused. Two rules turn lines into history, and both live here:

1. A last line that is torn (the process died while writing it) is dropped.
2. A `resume` record at step k supersedes earlier records of steps > k: they happened, and the run went back behind them. So
   does a `start` record, at step 0: the run died before its first checkpoint and began again.
"""

import contextlib
import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from grpo_core.errors import DiskFullError, JournalError, cause, shown
from grpo_core.machine.disk import is_full_disk
from grpo_core.machine.locks import holder_of, lock_soon
from grpo_core.metrics import check_registered
from grpo_core.run.journal_chain import Chain

Kind = Literal["start", "step", "ref_sync", "checkpoint", "eval", "alert", "resume", "end"]
KINDS = frozenset(get_args(Kind))

JOURNAL_FILE = "journal.jsonl"
NOT_FINITE = frozenset(("nan", "inf", "-inf"))
"""JSON has no numbers for them."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One event.

    Example: Record(seq=12, time="2026-01-01T10:00:00+00:00", kind="step", step=11, data={"metrics": {"kl/ref/k3": 0.02}}).
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
    digest: str = ""
    """Of this line and all before it; empty where a version without digests wrote it."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The figures of a `step` or `eval` record, empty for other kinds."""
        values: Mapping[str, float] = self.data.get("metrics", {})
        return values

    @property
    def timestamp_ms(self) -> int:
        """`time` as milliseconds since 1970, as MLflow wants it."""
        return round(datetime.fromisoformat(self.time).timestamp() * 1000)


class DamagedJournalError(JournalError):
    """A journal is not as it was written: refused with the ways out."""

    def __init__(self, fault: str, path: Path) -> None:
        """Say what is wrong with the journal at `path`, and what to do about it."""
        super().__init__(f"{fault}; {ways_out(path)}")
        self.fault = fault


class Journal:
    """Appends records to a file; the file is locked until it is closed, so that it has one writer at a time."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending, after dropping a torn last line.

        Raises:
            JournalError: another process is writing it, or a line of it is damaged or its chain of digests is broken: nothing
                is added to such a journal.
        """
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)  # a buffer would hand on later what could not be written now
        # Before anything is read: a line that another process is just writing looks torn.
        if not lock_soon(self._file):
            holder = holder_of(self._file)
            self._file.close()
            raise JournalError(
                f"run dir {path.parent}: {holder} is writing its journal; wait for it, end it, or give another --run-dir"
            )
        lines, whole_bytes = whole_lines(path.read_bytes())
        reader = _Reader(path)
        try:
            for line in lines:
                reader.take(line)
        except JournalError:
            self._file.close()
            raise
        self._file.truncate(whole_bytes)
        self._whole_bytes = whole_bytes
        self._next_seq = len(lines)
        self._chain = reader.chain
        self.last_step = 0
        """Step of the last record that was appended here."""

    @property
    def mark(self) -> tuple[int, str]:
        """(number of records, digest of the last one): what a checkpoint keeps to know its journal by."""
        return self._next_seq, self._chain.digest

    def append(self, kind: Kind, step: int, data: Mapping[str, Any]) -> Record:
        """Write one record; it is on disk when this returns.

        Raises:
            JournalError: a metric key is not in the registry, or the file cannot be written.
            DiskFullError: the disk is full.
        """
        check_registered(data.get("metrics", {}))
        time = datetime.now(UTC).isoformat(timespec="microseconds")
        record = Record(seq=self._next_seq, time=time, kind=kind, step=step, data=data)
        line, digest = self._chain.seal(encode(record))
        self._write(line + b"\n", f"the record {kind!r} of step {step}")
        self._chain.advance(digest)
        self._next_seq += 1
        self.last_step = step
        return replace(record, digest=digest)

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
            raise JournalError(f"{self._path}: {what} could not be written ({error.strerror})") from error
        self._whole_bytes += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path) -> list[Record]:
    """Return the history of a run: all records that both rules leave.

    Raises:
        JournalError: there is no such file, a whole line cannot be read, lines are missing, doubled or out of order, or the
            chain of digests is broken.
    """
    return supersede(read_records(path))


def read_records(path: Path) -> list[Record]:
    """Return every record of a run, those included that a `resume` superseded.

    Raises:
        JournalError: as `read_journal`.
    """
    if not path.exists():
        raise JournalError(f"{path}: no journal there; give the RUN_DIR of a run that has started")
    lines, _ = whole_lines(path.read_bytes())
    return list(map(_Reader(path).take, lines))


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


class JournalTail:
    """Reads a journal that another process is writing, each whole line once."""

    def __init__(self, path: Path) -> None:
        """Start at the beginning of `path`, which need not exist yet."""
        self._path = path
        self._offset = 0
        self._reader = _Reader(path)

    def read(self) -> Iterator[Record]:
        """Yield the records that have been completed since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        lines, whole_bytes = whole_lines(content)
        self._offset += whole_bytes
        yield from map(self._reader.take, lines)


class _Reader:
    """Turns the lines of one journal into records, in their order, and checks numbering and chain."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self.chain = Chain()

    def take(self, line: bytes) -> Record:
        self._number += 1
        where = f"{self._path}, line {self._number}"
        try:
            record = decode(line)
            if record.seq != self._number - 1:
                expected = self._number - 1
                raise ValueError(f"seq is {record.seq}, expected {expected}: a line is missing, doubled or out of order")
        except ValueError as error:
            raise DamagedJournalError(f"{where}: not a journal record ({cause(error)})", self._path) from error
        fault = self.chain.check(line)
        if fault is None and record.digest != self.chain.digest:  # spaces were added, or the order of the fields changed
            fault = "its digest is not where it was written: something else has written this file again"
        if fault is not None:
            raise DamagedJournalError(f"{where}: {fault}", self._path)
        return record


def ways_out(path: Path) -> str:
    """Return what to do about the damaged journal at `path`."""
    repair = f"grpo train --resume {shlex.quote(str(path.parent))} --repair"
    return (
        f"`{repair} mlflow` takes what is damaged or missing from MLflow, `{repair} cut` goes back to the last checkpoint that "
        "the whole part reaches"
    )


def whole_lines(content: bytes) -> tuple[list[bytes], int]:
    """Return the lines that end in a newline, and how many bytes they take; what follows is torn."""
    whole_bytes = content.rfind(b"\n") + 1
    return content[:whole_bytes].split(b"\n")[:-1], whole_bytes


def holds_record(path: Path) -> bool:
    """Tell whether a file is a journal, whole or damaged: one of its lines is a record, or it has no line yet."""
    lines, _ = whole_lines(path.read_bytes())
    for line in lines:
        with contextlib.suppress(ValueError):
            decode(line)
            return True
    return not lines


def encode(record: Record) -> bytes:
    """Return the line of a record without its digest."""
    fields = {"seq": record.seq, "time": record.time, "kind": record.kind, "step": record.step, "data": finite(record.data)}
    return json.dumps(fields, allow_nan=False, separators=(",", ":")).encode()


def finite(value: Any) -> Any:
    """Write NaN and infinities as the texts of NOT_FINITE."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def decode(line: bytes) -> Record:
    """Return the record of one line; neither its number nor its digest is checked.

    Raises:
        ValueError: it is no journal record.
    """
    try:
        fields = json.loads(line)
        kind, data, digest = fields["kind"], dict(fields["data"].items()), fields.get("digest", "")
        if kind not in KINDS:
            raise ValueError(f"kind {shown(kind)} is none of {', '.join(sorted(KINDS))}")
        if "metrics" in data:
            data["metrics"] = {key: _number(value) for key, value in data["metrics"].items()}
        if datetime.fromisoformat(fields["time"]).tzinfo is None:
            raise ValueError(f"time {fields['time']} has no zone")
        if not isinstance(digest, str):
            raise ValueError(f"digest {shown(digest)} is not text")
        seq, step = _whole(fields["seq"]), _whole(fields["step"])
        return Record(seq=seq, time=fields["time"], kind=kind, step=step, data=data, digest=digest)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {cause(error)}") from error


def _number(value: Any) -> float:
    """Return a figure; NaN and infinities were written as text."""
    if isinstance(value, bool) or (isinstance(value, str) and value not in NOT_FINITE):
        raise ValueError(f"{shown(value)} is not a figure")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{shown(value)} is not a count")
    return value
