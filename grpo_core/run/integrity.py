"""Whether the journal of a run is whole: its chain, that it reaches what the run has saved, and its configuration.

The chain alone (`record.py`) does not show that the end was cut off. Checkpoints and evaluations do: each was saved
after records that the journal must still hold.
"""

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config import changes_between, validate_config
from grpo_core.errors import ConfigError, GrpoError, JournalError, ModelError, cause, raised_as, shown
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.saved import JournalMark, list_checkpoints, read_mark, read_state
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import DamagedJournalError, Record, read_records, supersede
from grpo_core.run.pass_sizes import lowered_notes
from grpo_core.run.record import finite

SHOWN_KEYS = 8


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The journal of a run, found whole."""

    records: list[Record]
    """All of them, superseded ones included."""
    notes: tuple[str, ...]
    """What a reader of the figures should know about it: no digests, or repaired."""

    @property
    def history(self) -> list[Record]:
        """The records that no later `resume` took back."""
        return supersede(self.records)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint or an evaluation, which the journal must reach."""

    path: Path
    step: int
    mark: JournalMark | None = None
    """Of a checkpoint that holds one."""
    set_name: str | None = None
    """Of an evaluation."""
    facts: Mapping[str, Any] | None = None
    """Its figures, as its file holds them."""

    def fault(self, records: Sequence[Record]) -> str | None:
        """Return why a journal is not the one that this was saved with; None if it can be.

        Args:
            records: of the whole journal, superseded ones included.
        """
        name = f"{self.path.parent.name}/{self.path.name}"
        if self.set_name is not None:
            if any(r.kind == "eval" and r.step == self.step and r.data.get("set") == self.set_name for r in records):
                return None
            return f"it {_end(records)} and does not hold the evaluation in {name} (step {self.step})"
        if self.step and not any(record.kind == "step" and record.step == self.step for record in records):
            return f"it {_end(records)}, and {name} was saved after step {self.step}"
        mark = self.mark
        if mark is None or not mark.records:
            return None
        if len(records) < mark.records:
            return f"it {_end(records)} in {len(records)} records, and {name} was saved after {mark.records} records"
        other = (
            f"its first {mark.records} records are not those after which {name} was saved: it was written again by "
            "something else, or is the journal of another run"
        )
        return None if records[mark.records - 1].digest == mark.digest else other


def check_run(run_dir: RunDir) -> Checked:
    """Return the journal of a run that is whole and belongs to the run's configuration.

    Raises:
        JournalError: it is damaged, does not reach what the run has saved, or has a hole; the message says what to do.
        ConfigError: config.json was edited after the run had begun.
    """
    checked = check_journal(run_dir)
    check_config(run_dir, checked.records)
    return checked


def check_journal(run_dir: RunDir) -> Checked:
    """Return the journal of a run that is whole, empty where there is none.

    Raises:
        JournalError: as `check_run`.
    """
    saved = find_saved(run_dir)  # before the journal is read: a training under way adds to both
    records = read_records(run_dir.journal_file) if run_dir.journal_file.exists() else []
    fault = find_fault(records, saved, wrote_digests(run_dir))
    if fault is not None:
        raise DamagedJournalError(f"{run_dir.journal_file}: {fault}", run_dir.journal_file)
    for item in saved:
        if item.facts is not None and is_edited(item, records):
            raise JournalError(
                f"{item.path}: its figures are not those that the journal holds of this evaluation; remove it and evaluate "
                f"again with `grpo train --resume {shlex.quote(str(run_dir.path))}`"
            )
    with raised_as(JournalError, f"{run_dir.journal_file}, {{cause}}", ValueError):
        return Checked(records=records, notes=tuple(_notes(records)))


def check_config(run_dir: RunDir, records: Sequence[Record]) -> None:
    """Refuse a configuration that is not the one with which the run began; older journals do not hold it.

    Raises:
        ConfigError: names the keys that differ, with both values.
    """
    held = next((r.data["config"] for r in records if r.kind in ("start", "resume") and "config" in r.data), None)
    if held is None:
        return
    try:
        began = validate_config(held)
    except ConfigError as error:
        raise ConfigError(
            f"{run_dir.journal_file}: the configuration of its start record is not valid here ({cause(error)}); "
            "was the run made by another version?"
        ) from error
    changes = [
        f"{key} is {shown(new)}, was {shown(old)}"
        for key, (old, new) in changes_between(began, run_dir.read_config()).items()
        if key != "tracking.uri"  # a server may come up again at another address
    ]
    if changes:
        more = f", and {len(changes) - SHOWN_KEYS} more keys" if len(changes) > SHOWN_KEYS else ""
        raise ConfigError(
            f"{run_dir.config_file}: changed since the run began: {', '.join(changes[:SHOWN_KEYS])}{more}; a run keeps the "
            "configuration with which it began: write the old values back, or start a new run with the new ones"
        )


def find_saved(run_dir: RunDir) -> list[Saved]:
    """Return what the run has saved, as far as it can be read: a damaged checkpoint is the business of who loads it."""
    found = []
    for path in list_checkpoints(run_dir.checkpoints):
        with contextlib.suppress(ModelError):
            found.append(Saved(path=path, step=read_state(path).step, mark=read_mark(path)))
    for path in sorted(run_dir.eval.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            facts = read_json(path)
            step, set_name = dict(facts)["step"], facts["set"]
            if type(step) is int and isinstance(set_name, str):
                found.append(Saved(path=path, step=step, set_name=set_name, facts=facts))
    return found


def is_edited(evaluation: Saved, records: Sequence[Record]) -> bool:
    """Return whether the figures in the file of an evaluation are not those of its record; older records are not compared."""
    facts = finite(evaluation.facts or {})
    return all(
        record.digest and any(record.data.get(key) != value for key, value in facts.items())
        for record in records
        if record.kind == "eval" and record.step == evaluation.step and record.data.get("set") == evaluation.set_name
    )


def wrote_digests(run_dir: RunDir) -> bool:
    """Return whether the run began with a version that chains its journal; False where that is not known."""
    try:
        return bool(run_dir.read_provenance().get("journal_digests"))
    except GrpoError:
        return False


def find_fault(records: Sequence[Record], saved: Sequence[Saved], has_digests: bool) -> str | None:
    """Return what is wrong with a journal whose lines are whole; None if nothing is."""
    if has_digests and records and not records[0].digest:
        return "its records hold no digests although this run wrote them: it was written again by something else"
    faults = (*(item.fault(records) for item in saved), _hole_text(records))
    return next((fault for fault in faults if fault is not None), None)


def find_hole(records: Sequence[Record]) -> tuple[int, int, Record] | None:
    """Return (the first step that is missing, the last one, the record behind the hole); None where no step is missing.

    A journal that was cut and continued by a version without this check has one: no line of it is damaged.
    """
    reached = 0
    for record in supersede(list(records)):
        if record.kind in ("step", "resume"):
            last = record.step if record.kind == "resume" else record.step - 1
            if last > reached:
                return reached + 1, last, record
            reached = max(reached, record.step)
    return None


def _hole_text(records: Sequence[Record]) -> str | None:
    hole = find_hole(records)
    if hole is None:
        return None
    first, last, behind = hole
    steps = f"step {first} is" if first == last else f"steps {first} to {last} are"
    return f"{steps} missing before line {behind.seq + 1}: it was cut, and then continued"


def _end(records: Sequence[Record]) -> str:
    steps = [record.step for record in records if record.kind == "step"]
    return f"ends at step {steps[-1]}" if steps else "holds no finished step"


def _notes(records: Sequence[Record]) -> list[str]:
    without = sum(not record.digest for record in records)
    part = "it" if without == len(records) else f"its first {without} records"
    older = f"journal: an older version wrote {part} without digests; a figure that was changed there is not noticed"
    return [
        *([older] if without else []),
        *lowered_notes(records),
        *(str(record.data.get("text")) for record in records if record.kind == "alert" and "repaired" in record.data),
    ]
