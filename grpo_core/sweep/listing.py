"""A folder of runs as a table: one row a run, evaluation or sweep; `grpo runs`."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from grpo_core.errors import GrpoError, cause
from grpo_core.evaluation.results import HELD_OUT, HELD_OUT_SAMPLE
from grpo_core.machine.disk import folder_bytes
from grpo_core.machine.locks import lock_holder
from grpo_core.machine.marker import MARKER_FILE, Marker
from grpo_core.run.flow_folder import FlowDir
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record
from grpo_core.run.summary import run_status
from grpo_core.sweep.folder import SWEEP_FILE, SweepDir
from grpo_core.sweep.status import command_that_resumes, sweep_status


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One folder of ours."""

    path: Path
    kind: str
    """As its marker says: `run`, `evaluation`, `reproduction` or `sweep`."""
    state: str
    """Of a run as `RunStatus.state`, of a sweep as `SweepStatus.state`; `running` while a flow works in it; `damaged`."""
    preset: str
    done: int
    """Steps of a run, runs of a sweep."""
    total: int
    bytes: int
    """Of all files in the folder."""
    accuracy: float | None
    """Highest held-out greedy accuracy after the first step, in a sweep that of its runs; None where none was measured."""
    started: datetime
    """With time zone."""
    resume: str | None
    """The command that resumes it; None where there is nothing to resume."""
    fault: str | None = None
    """Why it cannot be read."""


def list_folders(folder: Path) -> list[Listed]:
    """Return what lies in a folder of runs, the newest first; of the folder of a sweep, its runs.

    Only folders with our marker are looked into.
    """
    inside = folder / "runs" if (folder / SWEEP_FILE).is_file() else folder
    listed = [_listed(path, marker) for path, marker in _marked(inside)]
    return sorted(listed, key=lambda entry: (entry.started, entry.path.name), reverse=True)


def best_accuracy(records: list[Record]) -> float | None:
    """Return the highest held-out greedy accuracy of a journal after its first step; None where none was measured."""
    keys = [f"eval/{name}/greedy_accuracy" for name in (HELD_OUT, HELD_OUT_SAMPLE)]
    evaluated = [record.metrics for record in records if record.kind == "eval" and record.step > 0]
    return max((metrics[key] for metrics in evaluated for key in keys if key in metrics), default=None)


def _marked(folder: Path) -> Iterator[tuple[Path, Marker]]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink() or not path.is_dir():
            continue
        try:
            marker = FlowDir(path).marker()
        except GrpoError as error:  # of a newer version
            yield path, Marker(kind=cause(error))
            continue
        if marker is not None:
            yield path, marker


def _listed(path: Path, marker: Marker) -> Listed:
    state, preset, done, total, accuracy, fault = "damaged", "", 0, 0, None, None
    try:
        if marker.kind == "sweep":
            state, preset, done, total, accuracy = _sweep_facts(SweepDir(path))
        elif marker.kind in RunDir.kinds:
            state, preset, done, total, accuracy = _run_facts(RunDir(path), marker.kind)
        else:
            fault = marker.kind
    except (GrpoError, OSError) as error:
        fault = cause(error)
    return Listed(
        path=path,
        kind=marker.kind if fault != marker.kind else "unknown",
        state=state,
        preset=preset,
        done=done,
        total=total,
        bytes=folder_bytes(path),
        accuracy=accuracy,
        started=_started(path, marker),
        resume=command_that_resumes(path),
        fault=fault,
    )


def _run_facts(run_dir: RunDir, kind: str) -> tuple[str, str, int, int, float | None]:
    is_held = lock_holder(run_dir.lock_file) is not None
    if not run_dir.config_file.exists():
        return ("running" if is_held else "not started"), "", 0, 0, None
    if kind == "evaluation":
        state = "running" if is_held else "finished" if any(run_dir.eval.glob("*.json")) else "died"
        return state, run_dir.read_origin().preset, 0, 0, best_accuracy(check_run(run_dir).history)
    status = run_status(run_dir)
    state = "running" if is_held else status.state
    return state, run_dir.read_origin().preset, status.step, status.steps, best_accuracy(check_run(run_dir).history)


def _sweep_facts(sweep_dir: SweepDir) -> tuple[str, str, int, int, float | None]:
    if not sweep_dir.sweep_file.exists():
        return ("running" if lock_holder(sweep_dir.lock_file) else "not started"), "", 0, 0, None
    status = sweep_status(sweep_dir)
    best = [entry.accuracy for entry in list_folders(sweep_dir.path) if entry.accuracy is not None]
    return status.state, status.name, status.ended, status.total, max(best, default=None)


def _started(path: Path, marker: Marker) -> datetime:
    """Return when a folder was made; its marker may be of a person's making, and say anything."""
    try:
        created = datetime.fromisoformat(marker.created)
        return created if created.tzinfo else created.replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp((path / MARKER_FILE).lstat().st_mtime, UTC)
