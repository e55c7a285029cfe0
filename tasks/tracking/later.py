"""Hand over a run's journal and results to MLflow after its flow has ended: what an outage or a cancellation left behind."""

from pathlib import Path

from grpo_core.errors import JournalError, TrackingError
from grpo_core.machine.locks import lock_holder
from grpo_core.redaction import redact_uri
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record, last_event
from grpo_core.run.resuming import path_argument
from tasks.tracking import Status, find_or_open, noting, track_inputs, track_results
from tasks.tracking.opening import refuse_copy
from tasks.tracking.store import TrackedRun, log_folder, make_client, own_tracked, read_tracked


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
    records = check_run(run_dir).history
    if writer := lock_holder(run_dir.journal_file) or lock_holder(run_dir.lock_file):
        raise TrackingError(f"run dir {run_path}: {writer} works on this run; its own monitor ships it")
    known = own_tracked(run_dir, read_tracked(run_dir))
    tracked = find_or_open(run_dir, known.uri)
    if tracked.run_id != known.run_id and run_dir.provenance_file.exists():  # a run that was killed early has none
        track_inputs.fn(run_path, tracked)
    status = _status(records)
    return tracked, status, track_results.fn(run_path, tracked, status)


def track_report(run_dir: RunDir, tracked: TrackedRun) -> tuple[str, ...]:
    """Log the report of a run as it is now; return what could not be tracked."""
    problems: list[str] = []
    again = f"; `grpo report {path_argument(run_dir.path)}` tries again"
    with noting(problems, "the report is not in MLflow", again):
        client = make_client(tracked.uri, create=False)
        own = f"`grpo track {path_argument(run_dir.path)}` gives this folder a run of its own"
        refuse_copy(client.get_run(tracked.run_id), run_dir, tracked, own)
        log_folder(client, tracked.run_id, run_dir.report, run_dir.report.name)
    return tuple(" ".join(redact_uri(problem).split()) for problem in problems)


def _status(records: list[Record]) -> Status:
    """Return how the training ended: one that began, or went on, and left no end was killed."""
    last = last_event(records)
    if last is None or last.kind != "end" or last.data.get("reason") in ("SIGTERM", "SIGINT"):
        return "KILLED"
    return "FAILED" if last.data.get("status") == "failed" else "FINISHED"
