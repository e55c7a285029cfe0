"""Whether the journal of a run is as it was written, its configuration the one with which it began, and what repairs a journal.

Each checkpoint holds the SHA-256 of the journal's bytes so far: a line before it that was changed, added or removed is noticed.
A damaged journal goes back to the last checkpoint that its intact part reaches. The damaged file stays beside it as
journal.damaged-<time>.jsonl, and a record of the new one says how it was repaired. A repair that is killed has done nothing, or
is done again.
"""

import contextlib
import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from grpo_core.config import changes_between, validate_config
from grpo_core.errors import ConfigError, JournalError, ModelError, shown
from grpo_core.machine.disk import read_json, remove, write_whole
from grpo_core.machine.locks import locked_soon
from grpo_core.policy.saved import ASIDE, list_checkpoints, read_mark
from grpo_core.run.folder import RunDir, changed_notes
from grpo_core.run.journal import DamagedJournalError, Record, encode, now, parse_lines, supersede


@dataclass(frozen=True, kw_only=True)
class CheckedJournal:
    """The journal of a run, as far as it is as it was written.

    `records` are all of them, superseded ones included, and have `num_bytes`; `fault` says what is wrong behind them. The
    checkpoints `reached` were taken within them, oldest first, and `unreached` behind them.
    """

    records: list[Record]
    num_bytes: int
    fault: str | None
    reached: tuple[Path, ...]
    unreached: tuple[Path, ...]

    @property
    def history(self) -> list[Record]:
        """The records that no later `resume` superseded."""
        return supersede(self.records)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures should know about it: forked, resumed with other passes, or repaired."""
        repairs = (record.data["text"] for record in self.records if record.kind == "alert" and "repaired" in record.data)
        forked = (
            f"forked from {Path(begun['run']).name} at {begun['step']}: {begun['changed']}"
            for record in self.records
            if record.kind == "start" and (begun := record.data.get("forked_from"))
        )
        return (*forked, *changed_notes(self.records), *repairs)


def find_intact(run_dir: RunDir) -> CheckedJournal:
    """Return how far the journal of a run is as it was written."""
    marks = list[tuple[int, str, Path]]()  # before the journal is read: a training under way adds to both
    for path in list_checkpoints(run_dir.checkpoints):
        with contextlib.suppress(ModelError):  # one that cannot be read is left to whoever loads it
            if (mark := read_mark(path)) is not None:
                marks.append((mark.bytes, mark.sha256, path))
    marks.sort()
    content = run_dir.journal_file.read_bytes() if run_dir.journal_file.exists() else b""
    records, num_bytes, fault = parse_lines(content)
    covered, digest, reached = 0, hashlib.sha256(), list[Path]()
    for end, sha256, path in marks:
        if end > num_bytes:
            fault = fault or f"line {len(records) + 1}: it is missing, and {path.name} was saved after it"
            break
        digest.update(content[covered:end])
        if digest.hexdigest() != sha256:
            first, last = content.count(b"\n", 0, covered) + 1, content.count(b"\n", 0, end)
            fault = f"lines {first} to {last}: not as they were when {path.name} was saved"
            records, num_bytes = records[: first - 1], covered
            break
        covered = end
        reached.append(path)
    return CheckedJournal(
        records=records,
        num_bytes=num_bytes,
        fault=fault,
        reached=tuple(reached),
        unreached=tuple(path for _, _, path in marks[len(reached) :]),
    )


def check_run(run_dir: RunDir) -> CheckedJournal:
    """Return the journal of a run, which is intact and belongs to the run's configuration; it is empty where there is none.

    Raises:
        JournalError: it is damaged, or does not reach a checkpoint of the run; the message says what to do.
        ConfigError: config.json was edited after the run had begun.
    """
    intact = find_intact(run_dir)
    if intact.fault is not None:
        resumes_from = intact.reached[-1].name if intact.reached else "step 0"
        raise DamagedJournalError(run_dir.journal_file, intact.fault, len(intact.records) + 1, resumes_from)
    begun = next((record.data["config"] for record in intact.records if "config" in record.data), None)
    changes = {} if begun is None else changes_between(validate_config(begun), run_dir.read_config())
    changes.pop("tracking.uri", None)  # a server may come up again at another address
    if changes:
        found = ", ".join(f"{key} is {shown(new)}, was {shown(old)}" for key, (old, new) in changes.items())
        raise ConfigError(
            f"{run_dir.config_file}: changed since the run began: {found}; write the old values back, and give others to a new "
            "run: `grpo train --continue runs/<run> key=value` goes on from its weights"
        )
    return intact


def cut(run_dir: RunDir, intact: CheckedJournal) -> str:
    """Keep the intact part of a journal, move checkpoints that it does not reach aside; return what was done, one line.

    The run goes back to the newest checkpoint that is left, or to its beginning. Evaluations whose record is lost are made
    again.

    Raises:
        JournalError: another process writes the journal.
    """
    journal, records = run_dir.journal_file, intact.records
    where = f"goes back to {intact.reached[-1].name}" if intact.reached else "begins again at step 0"
    aside = f"; moved aside: {', '.join(path.name for path in intact.unreached)}" if intact.unreached else ""
    text = f"journal repaired by a cut: its first {len(records)} records are left, the run {where}{aside}"
    step = max((record.step for record in records if record.kind == "step"), default=0)
    note = Record(seq=len(records), time=now(), kind="alert", step=step, data={"text": text, "repaired": "cut"})
    evaluated = {(record.data.get("set"), record.step) for record in records if record.kind == "eval"}
    refusal = f"{journal}: {{holder}} is writing it; wait for it, or end it first"
    with locked_soon(journal.open("ab"), JournalError, refusal):
        for path in intact.unreached:
            aside_as = path.with_name(f"{ASIDE}{path.name}")
            remove(aside_as)
            path.rename(aside_as)
        for file in run_dir.eval.glob("*.json"):
            facts = read_json(file)
            if (facts["set"], facts["step"]) not in evaluated:
                file.unlink()
        content = journal.read_bytes()
        write_whole(journal.with_name(f"journal.damaged-{datetime.now():%Y%m%d-%H%M%S}.jsonl"), content)
        write_whole(journal, content[: intact.num_bytes] + encode(note))
    return text
