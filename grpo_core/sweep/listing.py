"""A folder of runs as a table: one row a run, evaluation or sweep; `grpo runs`."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from grpo_core.errors import GrpoError, cause, shown
from grpo_core.evaluation.results import HELD_OUT, HELD_OUT_SAMPLE
from grpo_core.machine.disk import folder_bytes
from grpo_core.machine.locks import lock_holder
from grpo_core.machine.marker import MARKER_FILE
from grpo_core.run.flow_folder import FlowDir
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record
from grpo_core.run.resuming import resume_command
from grpo_core.run.summary import run_status
from grpo_core.sweep.folder import SWEEP_FILE, SweepDir
from grpo_core.sweep.status import sweep_of_runs, sweep_resume_command, sweep_status


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One folder of ours."""

    path: Path
    kind: str
    """As its marker says: `run`, `evaluation`, `reproduction` or `sweep`; `unknown` where the marker cannot be read."""
    state: str = "damaged"
    """Of a run as `RunStatus.state`, of a sweep as `SweepStatus.state`; `running` while a flow works in it; `damaged`."""
    preset: str = ""
    done: int = 0
    """Steps of a run, runs of a sweep."""
    total: int = 0
    bytes: int
    """Of all files in the folder."""
    accuracy: float | None = None
    """Highest held-out greedy accuracy after the first step, in a sweep that of its runs; None where none was measured."""
    started: datetime
    """With time zone."""
    resume: str | None = None
    """The command that resumes it; None where there is nothing to resume."""
    fault: str | None = None
    """Why it cannot be read."""


def list_folders(folder: Path) -> list[Listed]:
    """Return what lies in a folder of runs, the newest first; of the folder of a sweep, its runs.

    Only folders with our marker are looked into; comparisons and exports are left out.
    """
    inside = folder / "runs" if (folder / SWEEP_FILE).is_file() else folder
    listed = [_read(found) for found in _marked(inside)]
    if (sweep_dir := sweep_of_runs(inside)) is not None:
        command = sweep_resume_command(sweep_dir)
        listed = [replace(entry, resume=entry.resume and command) for entry in listed]
    return sorted(listed, key=lambda entry: (entry.started, entry.path.name), reverse=True)


def best_accuracy(records: list[Record]) -> float | None:
    """Return the highest held-out greedy accuracy of a journal after its first step; None where none was measured."""
    keys = [f"eval/{name}/greedy_accuracy" for name in (HELD_OUT, HELD_OUT_SAMPLE)]
    evaluated = [record.metrics for record in records if record.kind == "eval" and record.step > 0]
    return max((metrics[key] for metrics in evaluated for key in keys if key in metrics), default=None)


def _marked(folder: Path) -> list[Listed]:
    """Return the runs, evaluations and sweeps in a folder, not read yet."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [_found(path) for path in paths if path.is_dir() and not path.is_symlink()]
    return [entry for entry in found if entry is not None]


def _found(path: Path) -> Listed | None:
    """Return what the marker of a folder shows; None where it is not ours, a comparison or an export."""
    try:
        marker = FlowDir(path).marker()
    except GrpoError as error:  # of a newer version
        return Listed(path=path, kind="unknown", bytes=folder_bytes(path), started=_started(path, ""), fault=cause(error))
    if marker is None or marker.kind in ("comparison", "export"):
        return None
    return Listed(path=path, kind=marker.kind, bytes=folder_bytes(path), started=_started(path, marker.created))


def _read(entry: Listed) -> Listed:
    if entry.fault is not None:
        return entry
    try:
        if entry.kind == "sweep":
            return _of_sweep(entry, SweepDir(entry.path))
        if entry.kind in RunDir.kinds:
            return _of_run(entry, RunDir(entry.path))
    except (GrpoError, OSError) as error:
        return replace(entry, fault=cause(error))
    return replace(entry, kind="unknown", fault=f"its marker names the kind {shown(entry.kind)}, which does not exist")


def _of_run(entry: Listed, run_dir: RunDir) -> Listed:
    is_held = lock_holder(run_dir.lock_file) is not None
    if not run_dir.config_file.exists() and not run_dir.journal_file.exists():
        return replace(entry, state="running" if is_held else "not started")
    journal = check_run(run_dir)
    read = replace(entry, preset=run_dir.read_origin().preset, accuracy=best_accuracy(journal.history))
    if entry.kind == "evaluation":
        return replace(read, state="running" if is_held else "finished" if any(run_dir.eval.glob("*.json")) else "died")
    status = run_status(run_dir, journal)
    return replace(
        read,
        state="running" if is_held else status.state,
        done=status.step,
        total=status.steps,
        resume=resume_command(run_dir, journal=journal),
    )


def _of_sweep(entry: Listed, sweep_dir: SweepDir) -> Listed:
    if not sweep_dir.sweep_file.exists():
        return replace(entry, state="running" if lock_holder(sweep_dir.lock_file) else "not started")
    status, runs = sweep_status(sweep_dir), sorted(sweep_dir.runs.glob("*/config.json"))
    return replace(
        entry,
        state=status.state,
        preset=status.name,
        done=status.ended,
        total=status.total,
        accuracy=_best_of(RunDir(file.parent) for file in runs),
        resume=status.resume,
    )


def _best_of(runs: Iterable[RunDir]) -> float | None:
    """Return the highest held-out accuracy of some runs, without those that cannot be read."""
    found: list[float | None] = []
    for run_dir in runs:
        with contextlib.suppress(GrpoError, OSError):
            found.append(best_accuracy(check_run(run_dir).history))
    return max((accuracy for accuracy in found if accuracy is not None), default=None)


def _started(path: Path, created: str) -> datetime:
    """Return when a folder was made; its marker may be of a person's making, and say anything."""
    try:
        when = datetime.fromisoformat(created)
        return when if when.tzinfo else when.replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp((path / MARKER_FILE).lstat().st_mtime, UTC)
