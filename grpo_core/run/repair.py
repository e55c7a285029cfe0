"""Repair of a damaged journal: back to the last checkpoint that its whole part reaches.

Whatever is done, the damaged file stays beside the journal as journal.damaged-<time>.jsonl, and a record of the new journal
says how it was repaired. A repair that is killed has done nothing, or is done again.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO

from grpo_core.errors import JournalError
from grpo_core.machine.disk import durable, free_name, read_regular, write_whole
from grpo_core.machine.locks import locked_soon
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import Saved, find_fault, find_hole, find_saved, wrote_digests
from grpo_core.run.journal import whole_lines
from grpo_core.run.record import Chain, Record, decode_record, encode, now

ASIDE = "aside_"
"""Before the name of a checkpoint that the journal does not reach: nothing looks for one under such a name."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a damaged journal."""

    content: bytes
    record: Record | None
    """None where the line is damaged."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A damaged journal, and what of it can be relied on."""

    fault: str
    lines: list[Line]
    saved: list[Saved]
    num_whole: int
    """Lines from the beginning that are as they were written."""


def find_damage(run_dir: RunDir) -> Damage | None:
    """Return what is damaged in the journal of a run; None where it is whole and reaches what the run has saved."""
    saved, has_digests = find_saved(run_dir), wrote_digests(run_dir)
    file = run_dir.journal_file
    content, _ = whole_lines(read_regular(file) if file.exists() else b"")
    lines, fault = scan(content)
    whole = [line.record for line in lines if line.record is not None]
    fault = fault or find_fault(whole, saved, has_digests)
    if fault is None:
        return None
    prefix = _prefix(lines)
    vouched = [_is_vouched(prefix, item) for item in saved]
    foreign = False in vouched or (has_digests and bool(whole) and not whole[0].digest)
    if foreign:  # written again, or another run's: only what a checkpoint vouches for
        marks = [item.mark.records for item, is_so in zip(saved, vouched, strict=True) if is_so and item.mark is not None]
        prefix = prefix[: max(marks, default=0)]
    hole = find_hole(prefix)
    return Damage(fault=fault, lines=lines, saved=saved, num_whole=len(prefix) if hole is None else hole[2].seq)


def scan(content: Sequence[bytes]) -> tuple[list[Line], str | None]:
    """Return every line with its record where it is as it was written, and the first fault.

    A line is whole if its digest is that of its content and of the digest that stands before it, so that one line that was
    changed does not spoil those after it.
    """
    lines: list[Line] = []
    chain, first_fault = Chain(), None
    for number, line in enumerate(content, start=1):
        had_digest = bool(chain.digest)
        fault = chain.check(line)
        try:
            record = decode_record(line)
            if fault is None and record.digest != chain.digest:
                fault = "its digest is not where it was written"
            elif not chain.digest and record.seq != number - 1:  # only the digests of later versions vouch for a number
                fault = f"seq is {record.seq}, expected {number - 1}"
        except ValueError as error:
            record, fault = None, f"not a journal record ({error})"
        if fault is not None and first_fault is None:
            first_fault = f"line {number}: {fault}"
        if fault is not None and chain.digest and not had_digest:  # one of the older lines may be the one that was changed
            lines = [replace(older, record=None) for older in lines]
        lines.append(Line(content=line, record=record if fault is None else None))
    return lines, first_fault


def cut(run_dir: RunDir, damage: Damage) -> str:
    """Keep the whole part, move checkpoints that it does not reach aside; return what was done, one line.

    The run goes back to the newest checkpoint that is left, or to its beginning. Evaluations whose record is lost are made
    again.

    Raises:
        JournalError: another process writes the journal.
    """
    kept = [line.record for line in damage.lines[: damage.num_whole] if line.record is not None]
    lost = [item for item in damage.saved if item.fault(kept) is not None]
    reached = [item for item in damage.saved if item.set_name is None and item not in lost]
    where = f"goes back to {reached[-1].path.name}" if reached else "begins again at step 0"
    checkpoints = [item.path.name for item in lost if item.set_name is None]
    aside = f"; moved aside: {', '.join(checkpoints)}" if checkpoints else ""
    text = f"journal repaired by a cut: {len(kept)} of {len(damage.lines)} records are left, the run {where}{aside}"
    step = max((record.step for record in kept if record.kind == "step"), default=0)
    note = Record(seq=0, time=now(), kind="alert", step=step, data={"text": text, "repaired": "cut"})
    with _held(run_dir.journal_file):
        for item in lost:
            if item.set_name is None:
                item.path.rename(free_name(item.path.with_name(f"{ASIDE}{item.path.name}")))
            else:
                item.path.unlink()
        _put(run_dir.journal_file, [line.content for line in damage.lines[: damage.num_whole]], [note])
    return text


def _held(journal: Path) -> IO[bytes]:
    """Return the damaged journal, locked: nobody else writes it until it is closed."""
    return locked_soon(journal.open("ab"), JournalError, f"{journal}: {{holder}} is writing it; wait for it, or end it first")


def _put(journal: Path, kept: Sequence[bytes], added: Iterable[Record]) -> None:
    """Put lines as they are, and records under the numbers after them, in the place of a journal, which stays beside them."""
    chain, lines = Chain(), list(kept)
    for line in kept:
        chain.check(line)
    for record in added:
        line, digest = chain.seal(encode(replace(record, seq=len(lines))))
        chain.digest = digest
        lines.append(line)
    with durable(free_name(journal.with_name(f"journal.damaged-{datetime.now():%Y%m%d-%H%M%S}.jsonl"))) as partial:
        shutil.copy2(journal, partial)
    write_whole(journal, b"".join(line + b"\n" for line in lines))


def _prefix(lines: Sequence[Line]) -> list[Record]:
    """Return the records before the first damaged line."""
    damaged = (number for number, line in enumerate(lines) if line.record is None or line.record.seq != number)
    return [line.record for line in lines[: next(damaged, len(lines))] if line.record is not None]


def _is_vouched(records: Sequence[Record], saved: Saved) -> bool | None:
    """Return whether a checkpoint was saved after these records; None where it cannot tell."""
    mark = saved.mark
    if mark is None or not mark.records or mark.records > len(records):
        return None
    return records[mark.records - 1].digest == mark.digest
