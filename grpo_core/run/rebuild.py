"""A damaged journal rebuilt: its whole records, and between them what the tracker still holds of the others.

Figures and times are the tracker's own, so that nothing is tracked twice; whatever was not written by the training itself is
marked `"repaired": "mlflow"`. Alerts, ends and completed checkpoints that are lost stay lost, and are listed.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.errors import JournalError, few_names
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.saved import MANIFEST_FILE
from grpo_core.run.journal import Kind, Record, supersede
from grpo_core.run.record import now
from grpo_core.run.repair import Damage
from grpo_core.types import SCHEDULE, RefSync

MARKED = {"repaired": "mlflow"}
LOST = "a rule, whose alert was lost with the journal"
"""Cause of a sync that was not due."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """The figures of one step or evaluation."""

    time_ms: int
    """Since 1970."""
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """What the tracker holds of a run."""

    began_ms: int
    config: RunConfig
    """With which the run began."""
    steps: Mapping[int, Point]
    evaluations: Mapping[tuple[str, int], Point]
    """By set and step."""


def rebuild(damage: Damage, tracked: Tracked) -> list[Record]:
    """Return the records of a run: a note of what was done, those that are whole, and for the others what is tracked.

    Raises:
        JournalError: the tracker does not hold all that is missing before the newest checkpoint.
    """
    trusted = _last_of_each(supersede(damage.trusted))
    have = {record.step for record in trusted if record.kind == "step"}
    checkpoints = [item for item in damage.saved if item.set_name is None]
    last = _reached(have | tracked.steps.keys(), max((item.step for item in checkpoints), default=0))
    trusted = [record for record in trusted if record.step <= last]
    added = [
        _record("step", step, point.time_ms, {"metrics": dict(point.metrics)})
        for step, point in tracked.steps.items()
        if 0 < step <= last and step not in have
    ]
    known = {_identity(record) for record in trusted}
    began = {"steps": tracked.config.training.steps, "config": tracked.config.model_dump(mode="json")}
    others = (
        _record("start", 0, tracked.began_ms, began),
        *_syncs([*trusted, *added], tracked.config),
        *_evaluations(damage, tracked, last),
        *(
            _record("checkpoint", item.step, _written_ms(item.path / MANIFEST_FILE), {"name": item.path.name})
            for item in checkpoints
        ),
    )
    added += [record for record in others if _identity(record) not in known]
    # First, so that it stands in every part that a later repair finds whole.
    accepts = [item.mark.digest for item in checkpoints if item.mark is not None]
    data = {"text": _text(damage, trusted, added), **MARKED, "accepts": accepts}
    note = Record(seq=0, time=now(), kind="alert", step=0, data=data)
    return [note, *sorted([*trusted, *added], key=_order)]


def _reached(steps: Set[int], needed: int) -> int:
    """Return the step up to which none is missing."""
    missing = [step for step in range(1, needed + 1) if step not in steps]
    if missing:
        raise JournalError(
            f"the journal cannot be rebuilt up to the newest checkpoint (step {needed}): MLflow does not hold the steps "
            f"{few_names(missing, 8)} either; `--repair cut` goes back to the last checkpoint that the whole part "
            "reaches"
        )
    return next(step for step in itertools.count(needed) if step + 1 not in steps)


def _syncs(records: Sequence[Record], config: RunConfig) -> Iterator[Record]:
    """Yield a record for each step whose figures say that it ended in a sync; its figures hold all but the weight."""
    for record in records:
        figures = record.metrics
        if record.kind == "step" and figures.get("ref/synced") == 1:
            sync = RefSync(
                step=record.step,
                alpha=config.reference.mixup_alpha,
                sync_count=int(figures["ref/sync_count"]),
                kl_before=figures["ref/kl_before_sync"],
                kl_after=figures["ref/kl_after_sync"],
                param_distance=figures["ref/param_distance"],
                compression_error=figures.get("ref/compression_error"),
                compression_bound=figures.get("ref/compression_bound"),
                cause=SCHEDULE
                if (config.reference.sync_steps or 0) and not record.step % config.reference.sync_steps
                else LOST,
            )
            yield _record("ref_sync", record.step, record.timestamp_ms, sync.as_record())


def _evaluations(damage: Damage, tracked: Tracked, last: int) -> Iterator[Record]:
    """Yield those whose results lie in the run dir, and the others, of which only the tracker holds the figures."""
    in_folder = {(item.set_name, item.step) for item in damage.saved}
    for (set_name, step), point in tracked.evaluations.items():
        if step <= last and (set_name, step) not in in_folder:
            yield _record("eval", step, point.time_ms, {"set": set_name, "metrics": dict(point.metrics)})
    for item in damage.saved:
        if item.set_name is None:
            continue
        facts = read_json(item.path)
        metrics = {key: float(estimate["value"]) for key, estimate in facts["estimates"].items()}
        found = tracked.evaluations.get((item.set_name, item.step))
        time_ms = _written_ms(item.path) if found is None else found.time_ms
        yield _record("eval", item.step, time_ms, {**facts, "metrics": metrics})


def _written_ms(file: Path) -> int:
    return round(file.stat().st_mtime * 1000)


def _record(kind: Kind, step: int, time_ms: int, data: Mapping[str, Any]) -> Record:
    return Record(
        seq=0,
        time=datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="microseconds"),
        kind=kind,
        step=step,
        data={**data, **MARKED},
    )


def _identity(record: Record) -> tuple[object, ...]:
    """Return what there is one of in a history."""
    return ("start",) if record.kind == "start" else (record.kind, record.step, record.data.get("set"), record.data.get("name"))


def _last_of_each(records: Sequence[Record]) -> list[Record]:
    """Return the records without those that a later one repeats: the resume between them may be what is damaged."""
    last = {_identity(record): record for record in records}
    repeated = ("step", "ref_sync", "eval", "checkpoint")
    return [record for record in records if record.kind not in repeated or last[_identity(record)] is record]


def _order(record: Record) -> tuple[int, bool, datetime]:
    return record.step, record.kind != "step", datetime.fromisoformat(record.time)


def _text(damage: Damage, trusted: Sequence[Record], added: Sequence[Record]) -> str:
    steps = sorted(record.step for record in added if record.kind == "step")
    others = [record.kind for record in added if record.kind != "step"]
    parts = [f"steps {_ranges(steps)}"] if steps else []
    parts += [f"{others.count(kind)} {kind}" for kind in dict.fromkeys(others)]
    return (
        f"journal repaired from MLflow: {len(trusted)} of {len(damage.lines)} records are left; from MLflow and the run dir: "
        f"{', '.join(parts) or 'nothing'}; not recovered: alerts, ends and superseded steps of the damaged part"
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers in a few characters.

    >>> _ranges([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    """
    # In a run without a gap a number and its place grow alike.
    groups = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
