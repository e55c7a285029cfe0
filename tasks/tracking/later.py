"""Hand over a run's journal and results to MLflow after its flow has ended: what an outage or a cancellation left behind."""

from pathlib import Path

from grpo_core.errors import JournalError, TrackingError
from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import last_event
from grpo_core.run.resuming import path_argument
from tasks.tracking.opening import refuse_copy
from tasks.tracking.store import TrackedRun, log_folder, make_client, own_tracked
from tasks.tracking.training import Status, collect_problems, find_or_open, track_inputs, track_results


def track_later(run_path: Path) -> tuple[TrackedRun, Status, tuple[str, ...]]:
    """Ship what MLflow does not hold yet, each figure once; return (the MLflow run, its status, what could not be tracked).

    Raises:
        JournalError: the folder holds no run that has started, or its journal is damaged.
        ConfigError: its configuration was edited since it began.
        TrackingError: the run was never tracked, or at an address that is not ours, or is under way: its own monitor ships it.
    """
    run_dir = RunDir(run_path)
    if not run_dir.journal_file.exists():
        raise JournalError(f"{run_dir.journal_file}: no journal there; give the RUN_DIR of a run that has started")
    last = last_event(check_run(run_dir).history)
    if writer := lock_holder(run_dir.journal_file) or lock_holder(run_dir.lock_file):
        raise TrackingError(f"run dir {run_path}: {writer} works on this run; its own monitor ships it")
    known = own_tracked(run_dir)
    tracked = find_or_open(run_dir, known.uri)
    if tracked.run_id != known.run_id and run_dir.provenance_file.exists():  # a run that was killed early has none
        track_inputs.fn(run_path, tracked)
    status: Status = "FINISHED"
    if last is None or last.kind != "end" or last.data.get("reason") in ("SIGTERM", "SIGINT"):
        status = "KILLED"  # also one that began, or was resumed, and left no end
    elif last.data.get("status") == "failed":
        status = "FAILED"
    return tracked, status, track_results.fn(run_path, tracked, status)


def track_report(run_dir: RunDir, tracked: TrackedRun) -> tuple[str, ...]:
    """Log the report of a run as it is now; return what could not be tracked."""
    problems: list[str] = []
    again = f"; `grpo report {path_argument(run_dir.path)}` tries again"
    with collect_problems(problems, "the report is not in MLflow", again):
        client = make_client(tracked.uri, create=False)
        own = f"`grpo track {path_argument(run_dir.path)}` gives this folder a run of its own"
        refuse_copy(client.get_run(tracked.run_id), run_dir, own)
        log_folder(client, tracked.run_id, run_dir.report, run_dir.report.name)
    return tuple(problems)
