"""A damaged journal rebuilt: its whole records, and between them what the tracker still holds of the others.

Figures and times are the tracker's own, so that nothing is tracked twice; whatever was not written by the training itself is
marked `"repaired": "mlflow"`. Alerts, ends and completed checkpoints that are lost stay lost, and are listed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.errors import JournalError
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.saved import MANIFEST_FILE
from grpo_core.run.journal import Kind, Record, supersede
from grpo_core.run.repair import Damage, now
from grpo_core.run.tables import SYNC_COLUMNS

MARKED = {"repaired": "mlflow"}
SHOWN_STEPS = 8


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


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """A journal that can take the place of a damaged one."""

    records: list[Record]
    text: str
    """What was done, one line."""


def rebuild(damage: Damage, tracked: Tracked) -> Rebuilt:
    """Return the records of a run: those that are whole, and for the others what is tracked.

    Raises:
        JournalError: the tracker does not hold all that is missing before the newest checkpoint.
    """
    trusted = list(_last_of_each(supersede(damage.trusted)))
    have = {record.step for record in trusted if record.kind == "step"}
    checkpoints = [item for item in damage.saved if item.set_name is None]
    last = _reached(have | tracked.steps.keys(), max((item.step for item in checkpoints), default=0))
    trusted = [record for record in trusted if record.step <= last]
    added = [_step(step, tracked.steps[step]) for step in range(1, last + 1) if step not in have]
    known = {_identity(record) for record in trusted}
    others = [*_starts(tracked), *_syncs([*trusted, *added], tracked.config), *_evaluations(damage, tracked, last)]
    added += [record for record in (*others, *_checkpoints(damage)) if _identity(record) not in known]
    text = _text(damage, trusted, added)
    marks = [item.mark.digest for item in checkpoints if item.mark is not None]
    # First, so that it stands in every part that a later repair finds whole.
    note = Record(seq=0, time=now(), kind="alert", step=0, data={"text": text, **MARKED, "accepts": marks})
    return Rebuilt(records=[note, *sorted([*trusted, *added], key=_order)], text=text)


def _reached(steps: Iterable[int], needed: int) -> int:
    """Return the step up to which none is missing."""
    known, last = set(steps), 0
    while last + 1 in known:
        last += 1
    if last < needed:
        missing = [step for step in range(1, needed + 1) if step not in known]
        more = f" and {len(missing) - SHOWN_STEPS} more" if len(missing) > SHOWN_STEPS else ""
        shown = ", ".join(map(str, missing[:SHOWN_STEPS]))
        raise JournalError(
            f"the journal cannot be rebuilt up to the newest checkpoint (step {needed}): MLflow does not hold the steps "
            f"{shown}{more} either; `--repair cut` goes back to the last checkpoint that the whole part reaches"
        )
    return last


def _step(step: int, point: Point) -> Record:
    return _record("step", step, point.time_ms, {"metrics": dict(point.metrics)})


def _starts(tracked: Tracked) -> Iterator[Record]:
    config = tracked.config.model_dump(mode="json")
    yield _record("start", 0, tracked.began_ms, {"steps": tracked.config.training.steps, "config": config})


def _syncs(records: Sequence[Record], config: RunConfig) -> Iterator[Record]:
    """Yield a record for each step whose figures say that it ended in a sync; its figures hold all but the weight."""
    for record in records:
        figures = record.metrics
        if record.kind == "step" and figures.get("ref/synced") == 1:
            values = {
                "step": record.step,
                "alpha": config.reference.mixup_alpha,
                "sync_count": int(figures["ref/sync_count"]),
                "kl_before": figures["ref/kl_before_sync"],
                "kl_after": figures["ref/kl_after_sync"],
                "param_distance": figures["ref/param_distance"],
            }
            assert values.keys() == SYNC_COLUMNS.keys()
            yield _record("ref_sync", record.step, record.timestamp_ms, values)


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
        time_ms = found.time_ms if found is not None else round(item.path.stat().st_mtime * 1000)
        yield _record("eval", item.step, time_ms, {**facts, "metrics": metrics})


def _checkpoints(damage: Damage) -> Iterator[Record]:
    for item in damage.saved:
        if item.set_name is None:
            written_ms = round((item.path / MANIFEST_FILE).stat().st_mtime * 1000)
            yield _record("checkpoint", item.step, written_ms, {"name": item.path.name})


def _record(kind: Kind, step: int, time_ms: int, data: Mapping[str, Any]) -> Record:
    time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="microseconds")
    return Record(seq=0, time=time, kind=kind, step=step, data={**data, **MARKED})


def _identity(record: Record) -> tuple[object, ...]:
    """Return what there is one of in a history."""
    if record.kind == "start":
        return ("start",)
    return record.kind, record.step, record.data.get("set"), record.data.get("name")


def _last_of_each(records: Sequence[Record]) -> Iterator[Record]:
    """Yield the records without those that a later one repeats: the resume between them may be what is damaged."""
    last = {_identity(record): record for record in records}
    for record in records:
        if record.kind not in ("step", "ref_sync", "eval", "checkpoint") or last[_identity(record)] is record:
            yield record


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
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
