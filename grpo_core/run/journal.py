"""The journal of a run: one JSON line an event, flushed and fsynced before it counts. It is the truth; the rest are views.

A record is {"seq", "time", "kind", "step", "data", "digest"}; the digests are a chain (`record.py`), so that a line that
was changed, added or removed is refused. Two rules turn lines into history, and both live here:

1. A last line that is torn (the process died while writing it) is dropped.
2. A `resume` record at step k supersedes earlier records of steps > k: they happened, and the run went back behind them. So
   does a `start` record, at step 0: the run died before its first checkpoint and began again.
"""

import contextlib
import os
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_core.errors import DiskFullError, JournalError, cause, raised_as
from grpo_core.machine.disk import durable_folder, flush, is_full_disk, read_regular
from grpo_core.machine.locks import locked_soon
from grpo_core.metrics import check_registered
from grpo_core.run.record import KINDS, Chain, Kind, Record, decode_record, encode, now

__all__ = [
    "KINDS",
    "DamagedJournalError",
    "Journal",
    "JournalTail",
    "Kind",
    "Record",
    "last_event",
    "read_journal",
    "read_records",
    "supersede",
]

JOURNAL_FILE = "journal.jsonl"


class DamagedJournalError(JournalError):
    """A journal is not as it was written: refused with the way out."""

    def __init__(self, fault: str, path: Path) -> None:
        """Say what is wrong with the journal at `path`, and what to do about it."""
        repair = f"grpo train --resume {shlex.quote(str(path.parent))} --repair cut"
        super().__init__(f"{fault}; `{repair}` goes back to the last checkpoint that the whole part reaches")
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
        durable_folder(path.parent)
        is_new = not path.exists()
        self._file = path.open("ab", buffering=0)  # a buffer would hand on later what could not be written now
        if is_new:
            flush(path.parent)
        # Before anything is read: a line that another process is just writing looks torn.
        locked_soon(
            self._file,
            JournalError,
            f"run dir {path.parent}: {{holder}} is writing its journal; wait for it, end it, or give another --run-dir",
        )
        lines, whole_bytes = whole_lines(path.read_bytes())
        self._reader = _Reader(path)
        try:
            for line in lines:
                self._reader.take(line)
        except JournalError:
            self._file.close()
            raise
        self._file.truncate(whole_bytes)
        self._whole_bytes = whole_bytes
        self._one_at_a_time = threading.Lock()  # a checkpoint is journalled by the thread that wrote it
        self.last_step = 0
        """The furthest step of the records that were appended here."""

    @property
    def mark(self) -> tuple[int, str]:
        """(number of records, digest of the last one): what a checkpoint keeps to know its journal by."""
        return self._reader.number, self._reader.chain.digest

    def append(self, kind: Kind, step: int, data: Mapping[str, Any]) -> Record:
        """Write one record; it is on disk when this returns.

        Raises:
            JournalError: a metric key is not in the registry, or the file cannot be written.
            DiskFullError: the disk is full.
        """
        check_registered(data.get("metrics", {}))
        with self._one_at_a_time:
            record = Record(seq=self._reader.number, time=now(), kind=kind, step=step, data=data)
            line, digest = self._reader.chain.seal(encode(record))
            self._write(line + b"\n", f"the record {kind!r} of step {step}")
            self._reader.chain.digest = digest
            self._reader.number += 1
            self.last_step = max(self.last_step, step)
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
    lines, _ = whole_lines(_content(path))
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


def last_event(history: Sequence[Record]) -> Record | None:
    """Return the last record of a beginning, a resume or an end of the run; None where there is none."""
    return next((record for record in reversed(history) if record.kind in ("start", "resume", "end")), None)


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
        lines, whole_bytes = whole_lines(_content(self._path, self._offset))
        self._offset += whole_bytes
        yield from map(self._reader.take, lines)


@dataclass
class _Reader:
    """Turns the lines of one journal into records, in their order, and checks numbering and chain."""

    path: Path
    number: int = 0
    """Of lines so far."""
    chain: Chain = field(default_factory=Chain)

    def take(self, line: bytes) -> Record:
        expected, where = self.number, f"{self.path}, line {self.number + 1}"
        self.number += 1
        try:
            record = decode_record(line)
            if record.seq != expected:
                raise ValueError(f"seq is {record.seq}, expected {expected}: a line is missing, doubled or out of order")
        except ValueError as error:
            raise DamagedJournalError(f"{where}: not a journal record ({cause(error)})", self.path) from error
        fault = self.chain.check(line)
        if fault is None and record.digest != self.chain.digest:  # spaces were added, or the order of the fields changed
            fault = "its digest is not where it was written: something else has written this file again"
        if fault is not None:
            raise DamagedJournalError(f"{where}: {fault}", self.path)
        return record


def whole_lines(content: bytes) -> tuple[list[bytes], int]:
    """Return the lines that end in a newline, and how many bytes they take; what follows is torn."""
    whole_bytes = content.rfind(b"\n") + 1
    return content[:whole_bytes].split(b"\n")[:-1], whole_bytes


def _content(path: Path, offset: int = 0) -> bytes:
    with raised_as(JournalError, f"{path}: the journal cannot be read ({{cause}})", OSError):
        return read_regular(path, offset)


def holds_record(path: Path) -> bool:
    """Return whether a file is a journal, whole or damaged: one of its lines is a record, or it has no line yet."""
    lines, _ = whole_lines(_content(path))
    for line in lines:
        with contextlib.suppress(ValueError):
            decode_record(line)
            return True
    return not lines
