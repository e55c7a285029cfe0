"""Hand over a run's journal and results to MLflow after its flow has ended: what an outage or a cancellation left behind."""

from pathlib import Path

from grpo_core.errors import JournalError, TrackingError
from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record, last_event
from tasks.tracking import Status, track_inputs, track_results
from tasks.tracking.opening import open_new
from tasks.tracking.store import TrackedRun, make_client, read_tracked, short_retries


def track_later(run_path: Path) -> tuple[TrackedRun, Status, tuple[str, ...]]:
    """Ship what MLflow does not hold yet, each figure once; return (the MLflow run, its status, what could not be tracked).

    Raises:
        JournalError: the folder holds no run that has started, or its journal is damaged.
        ConfigError: its configuration was edited since it began.
        TrackingError: the run was never tracked, or is under way: its own monitor ships it.
    """
    run_dir = RunDir(run_path)
    if not run_dir.journal_file.exists():
        raise JournalError(f"{run_dir.journal_file}: no journal there; give the RUN_DIR of a run that has started")
    records = check_run(run_dir).history
    if writer := lock_holder(run_dir.journal_file) or lock_holder(run_dir.lock_file):
        raise TrackingError(f"run dir {run_path}: {writer} works on this run; its own monitor ships it")
    tracked = _find_or_open(run_dir, read_tracked(run_dir))
    status = _status(records)
    return tracked, status, track_results.fn(run_path, tracked, status)


def _find_or_open(run_dir: RunDir, tracked: TrackedRun) -> TrackedRun:
    """Return the run's MLflow run; a new one, with its inputs, where the store does not hold it: the store was replaced."""
    from mlflow.exceptions import MlflowException

    try:
        with short_retries():
            make_client(tracked.uri).get_run(tracked.run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            anew = open_new(run_dir, tracked.uri)
            if run_dir.provenance_file.exists():  # a run that was killed early has none
                track_inputs.fn(run_dir.path, anew)
            return anew
    return tracked


def _status(records: list[Record]) -> Status:
    """Return how the training ended: one that began, or went on, and left no end was killed."""
    last = last_event(records)
    if last is None or last.kind != "end" or last.data.get("reason") in ("SIGTERM", "SIGINT"):
        return "KILLED"
    return "FAILED" if last.data.get("status") == "failed" else "FINISHED"
