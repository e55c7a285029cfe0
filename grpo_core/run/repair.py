"""Repair of a damaged journal: back to the last checkpoint that its intact part reaches.

The damaged file stays beside the journal as journal.damaged-<time>.jsonl, and a record of the new journal says how it was
repaired. A repair that is killed has done nothing, or is done again.
"""

import contextlib
import shutil
from datetime import datetime

from grpo_core.errors import JournalError
from grpo_core.machine.disk import durable, free_name, read_regular, write_whole
from grpo_core.machine.jsonfile import read_json
from grpo_core.machine.locks import locked_soon
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import IntactPart, find_intact
from grpo_core.run.record import Record, encode, now

ASIDE = "aside_"
"""Before the name of a checkpoint that the journal does not reach: nothing looks for one under such a name."""


def find_damage(run_dir: RunDir) -> IntactPart | None:
    """Return how far the journal of a run is intact; None where all of it is."""
    intact = find_intact(run_dir)
    return None if intact.fault is None else intact


def cut(run_dir: RunDir, intact: IntactPart) -> str:
    """Keep the intact part of a journal, move checkpoints that it does not reach aside; return what was done, one line.

    The run goes back to the newest checkpoint that is left, or to its beginning. Evaluations whose record is lost are made
    again.

    Raises:
        JournalError: another process writes the journal.
    """
    journal = run_dir.journal_file
    where = f"goes back to {intact.reached[-1].name}" if intact.reached else "begins again at step 0"
    aside = f"; moved aside: {', '.join(path.name for path in intact.unreached)}" if intact.unreached else ""
    text = f"journal repaired by a cut: its first {len(intact.records)} records are left, the run {where}{aside}"
    step = max((record.step for record in intact.records if record.kind == "step"), default=0)
    note = Record(seq=len(intact.records), time=now(), kind="alert", step=step, data={"text": text, "repaired": "cut"})
    refusal = f"{journal}: {{holder}} is writing it; wait for it, or end it first"
    with locked_soon(journal.open("ab"), JournalError, refusal):
        for path in intact.unreached:
            path.rename(free_name(path.with_name(f"{ASIDE}{path.name}")))
        _drop_evaluations(run_dir, intact)
        content = read_regular(journal)
        with durable(free_name(journal.with_name(f"journal.damaged-{datetime.now():%Y%m%d-%H%M%S}.jsonl"))) as partial:
            shutil.copy2(journal, partial)
        write_whole(journal, content[: intact.num_bytes] + encode(note))
    return text


def _drop_evaluations(run_dir: RunDir, intact: IntactPart) -> None:
    """Remove the results of evaluations whose record is lost."""
    kept = {(record.data.get("set"), record.step) for record in intact.records if record.kind == "eval"}
    for file in run_dir.eval.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            facts = read_json(file)
            if (facts["set"], facts["step"]) not in kept:
                file.unlink()
