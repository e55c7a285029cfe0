"""The MLflow run of a training or an evaluation: opened before anything costly, fed by the monitor, ended whatever happens."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from prefect import task
from prefect.cache_policies import NO_CACHE
from tenacity import retry, retry_if_exception_message, stop_after_delay, wait_fixed

from grpo_core.errors import JournalError, TrackingError, cause, raised_as
from grpo_core.machine.disk import PARTIAL
from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir, monitor_alerts
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record, last_event, read_journal, read_records
from grpo_core.run.resuming import path_argument
from grpo_core.run.trackers import require_trackers
from tasks.credentials import is_same_address, usable_uri
from tasks.process.prefect_outage import was_interrupted
from tasks.tracking.also import feeds
from tasks.tracking.opening import STOP_TAG, open_training
from tasks.tracking.shipper import DELETED, END_SECONDS, SYNC_TABLE, Shipper, log_whole_table
from tasks.tracking.store import (
    TrackedRun,
    log_folder,
    make_client,
    own_tracked,
    patiently,
    read_tracked,
    tracking_uri,
)
from tasks.tracking.tables import log_completions, log_evaluation

logger = logging.getLogger(__name__)

INTERRUPTED_SECONDS = 3.0
"""How long a run that was interrupted waits for a tracking server that is away; Prefect kills a cancelled flow after 30 s."""

LOCKED_SECONDS = 60.0
"""How long a run tries to be opened in a SQLite store in which many others write."""
OPENING_REMEDY = (
    "start it, correct tracking.uri or MLFLOW_TRACKING_URI, or unset both to track in a local SQLite file; a login goes to the "
    "server of MLFLOW_TRACKING_URI alone"
)
Status = Literal["FINISHED", "FAILED", "KILLED"]


@task(name="open-tracking", cache_policy=NO_CACHE)
def open_tracking(run_path: Path) -> TrackedRun:
    """Create the MLflow run and remember it in tracking.json, before anything costly is done; a resumed run keeps its own.

    The flow run's page in Prefect links to it from then on.

    Raises:
        ConfigError: a tracker of `tracking.also` cannot be used.
        TrackingError: the store or server cannot be used.
    """
    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    if not run_dir.has_started:  # one that is resumed continues without a tracker that is gone
        require_trackers(config)
    return find_or_open(run_dir, tracking_uri(config, run_path))


@retry(
    # SQLite on a machine that is overloaded; what had been opened is found again
    retry=retry_if_exception_message(match=r".*database is locked"),
    stop=stop_after_delay(LOCKED_SECONDS),
    wait=wait_fixed(1),
    reraise=True,
)
def find_or_open(run_dir: RunDir, uri: str) -> TrackedRun:
    """Return the MLflow run of a folder, running: the one that it has, at its own address or at `uri`, or a new one there.

    Raises:
        TrackingError: the store or server cannot be used, or the folder names an address that is not ours.
    """
    known = read_tracked(run_dir) if run_dir.tracking_file.exists() else None
    if known is not None and not is_same_address(known.uri, uri):
        known = own_tracked(run_dir)
    what = f"tracking.uri {known.uri if known else uri}: MLflow cannot be used there ({{cause}}); {OPENING_REMEDY}"
    with raised_as(TrackingError, what, Exception):  # mlflow raises unrelated types for each store
        return open_training(run_dir, known, uri)


@task(name="track-inputs", cache_policy=NO_CACHE)
@patiently
def track_inputs(run_path: Path, tracked: TrackedRun) -> None:
    """Log what the run is made with: config, provenance, frozen prompts, and the data set as an input."""
    import mlflow
    import pandas
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.entities import DatasetInput, InputTag

    from grpo_core.data.prepare import load_frozen

    run_dir, client = RunDir(run_path), make_client(tracked.uri)
    provenance, config = run_dir.read_provenance(), run_dir.read_config()
    for key in ("git_commit", "config_digest", "data_digest", "model_digest", "adapter_digest"):
        if provenance.get(key) is not None:
            client.set_tag(tracked.run_id, key, provenance[key])
    for file in (run_dir.config_file, run_dir.origin_file, run_dir.provenance_file):
        client.log_artifact(tracked.run_id, str(file))
    for file in sorted(file for file in run_dir.data.iterdir() if file.is_file() and not file.name.endswith(PARTIAL)):
        client.log_artifact(tracked.run_id, str(file), "data")  # the files of images stay in the run's folder
    inputs = []
    for split, context, prompts in zip(("train", "eval"), ("training", "evaluation"), load_frozen(run_dir.data), strict=True):
        frame = pandas.DataFrame({"prompt": [prompt.text for prompt in prompts]})
        source = CodeDatasetSource({"data.source": config.data.source, "artifact": f"data/{split}.jsonl"})
        named = {"name": f"{split}-prompts", "digest": provenance["data_digest"][:8]}
        data = mlflow.data.from_pandas(frame, source=source, **named)._to_mlflow_entity()
        inputs.append(DatasetInput(data, [InputTag("mlflow.data.context", context)]))
    client.log_inputs(tracked.run_id, datasets=inputs)


@task(name="track-results", cache_policy=NO_CACHE)
def track_results(run_path: Path, tracked: TrackedRun, status: Status) -> tuple[str, ...]:
    """Ship what is left of the journal, log tables, figures and policy, end the run; return what could not be tracked.

    A run that was interrupted has little time left: nothing is waited for and the policy is not copied.
    """
    run_dir, is_finished = RunDir(run_path), status == "FINISHED"
    problems: list[str] = []
    client, also = make_client(tracked.uri), feeds(run_dir, tracked)
    shipper = Shipper(tracked, also)
    try:
        records: list[Record] = read_records(run_dir.journal_file) if run_dir.journal_file.exists() else []
    except JournalError as error:  # nothing of a damaged journal is tracked
        records = []
        problems.append(str(error))
    for record in records:
        shipper.add(record)
    for alert in monitor_alerts(run_dir):
        if alert.rule:
            shipper.add_alert(alert.rule, alert.text)
    unshipped = shipper.ship_all(END_SECONDS if is_finished else INTERRUPTED_SECONDS)
    again = f"`grpo track {run_path}` ships them later"
    problems += [f"figures are missing in {feed.error}; {again}" for feed in also if feed.error]
    if shipper.is_deleted:
        return (*problems, f"{DELETED}; everything is in {run_path}, and `grpo track {run_path}` logs it to a new MLflow run")
    if unshipped:
        problems.append(f"{unshipped} records of {run_dir.journal_file} are not in MLflow ({shipper.last_error}); {again}")
    with collect_problems(problems, "artifacts are not all in MLflow", f"; they are in {run_dir.path}"):
        _log_artifacts(client, run_dir, tracked)
        if is_finished:
            _log_policy(client, run_dir, tracked)
    with collect_problems(problems, f"the MLflow run could not be ended as {status}"):
        client.set_terminated(tracked.run_id, status)
    return tuple(problems)


@contextmanager
def collect_problems(problems: list[str], problem: str, remedy: str = "") -> Iterator[None]:
    """Add a problem instead of raising: what cannot be tracked does not make a training fail."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (mlflow raises unrelated types for each store)
        problems.append(f"{problem} ({type(error).__name__}: {cause(error)}){remedy}")


@contextmanager
def end_tracking(run_path: Path, tracked: TrackedRun) -> Iterator[None]:
    """End the MLflow run with the right status if what is inside is interrupted (KILLED) or fails (FAILED).

    A start that fails before any process of the run was started is no run: it is deleted (MLflow keeps what is deleted until
    its garbage collection).
    """
    try:
        yield
    except BaseException as error:
        problems: list[str] = []
        if was_interrupted(error) or RunDir(run_path).has_started:
            problems += track_results.fn(run_path, tracked, "KILLED" if was_interrupted(error) else "FAILED")
        else:
            with collect_problems(problems, "the MLflow run of a start that failed could not be deleted"):
                make_client(tracked.uri).delete_run(tracked.run_id)
        for problem in problems:
            logger.warning(problem)
        raise


def stop_requested(tracked: TrackedRun) -> str | None:
    """Return why somebody wants the run to end, from its tag `grpo.stop` or its deletion in the MLflow UI; None otherwise."""
    try:
        run = make_client(tracked.uri).get_run(tracked.run_id)
    except Exception:  # noqa: BLE001  (the server is away: nobody can ask for anything there)
        return None
    if run.info.lifecycle_stage == "deleted":
        return DELETED
    reason = run.data.tags.get(STOP_TAG)
    return None if reason is None else f"asked for in MLflow (tag {STOP_TAG}: {reason or 'no reason given'})"


@contextmanager
def system_metrics(tracked: TrackedRun) -> Iterator[None]:
    """Log CPU, memory and GPU use of this machine while inside."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    watcher = SystemMetricsMonitor(tracked.run_id, resume_logging=True, tracking_uri=usable_uri(tracked.uri))
    watcher.start()
    try:
        yield
    finally:
        watcher.finish()


def _log_artifacts(client: Any, run_dir: RunDir, tracked: TrackedRun) -> None:
    """Log files and folders, and what MLflow shows as tables: syncs, completions of three steps and of evaluations."""
    from grpo_core.run.curves import read_table, sync_table
    from grpo_core.run.samples import kept_steps

    for file in (run_dir.page, run_dir.journal_file, run_dir.alerts_file, run_dir.log_file("train")):
        if file.exists():
            client.log_artifact(tracked.run_id, str(file))
    for folder in (run_dir.completions, run_dir.probe, run_dir.eval, run_dir.report):
        log_folder(client, tracked.run_id, folder, folder.name)
    for file in run_dir.eval.glob("*.parquet"):
        if (table := read_table(file)) is not None:
            log_evaluation(client, tracked.run_id, f"completions_eval_{file.stem}", run_dir, table)
    if run_dir.journal_file.exists():
        log_whole_table(client, tracked.run_id, SYNC_TABLE, sync_table(read_journal(run_dir.journal_file)))
    kept = kept_steps(run_dir)
    for name, place in {"first": 0, "middle": len(kept) // 2, "last": -1}.items() if kept else ():
        log_completions(client, tracked.run_id, f"completions_{name}_step", run_dir, kept[place])


def _log_policy(client: Any, run_dir: RunDir, tracked: TrackedRun) -> None:
    """Log the final policy, and the best where that is another one: where it is, its digest, and the weights if asked for."""
    from grpo_core.policy.saved import find_best, list_checkpoints, read_state
    from grpo_core.policy.sources.find import weights_digest

    final, best = list_checkpoints(run_dir.checkpoints)[-1:], find_best(run_dir.checkpoints)
    present = {file.path for file in client.list_artifacts(tracked.run_id)}
    for name, checkpoint in (*(("policy", one) for one in final), *([("best_policy", best)] if best else [])):
        policy = checkpoint / "policy"
        client.set_tag(tracked.run_id, f"{name}_path", str(policy.resolve()))
        client.set_tag(tracked.run_id, f"{name}_digest", weights_digest(policy))
        client.set_tag(tracked.run_id, f"{name}_step", str(read_state(checkpoint).step))
        # The best is not sent twice where it is the final one, unless an earlier session has sent another.
        is_wanted = name == "policy" or [checkpoint] != final or name in present
        if run_dir.read_config().tracking.log_policy and is_wanted:
            log_folder(client, tracked.run_id, policy, name)


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
    run_dir.also_file.unlink(missing_ok=True)  # everything is handed over again: a tracker may have lost it
    if tracked.run_id != known.run_id and run_dir.provenance_file.exists():  # a run that was killed early has none
        track_inputs.fn(run_path, tracked)
    status: Status = "FINISHED"
    if last is None or last.kind != "end" or last.data.get("reason") in ("SIGTERM", "SIGINT"):
        status = "KILLED"  # also one that began, or was resumed, and left no end
    elif last.data.get("status") == "failed":
        status = "FAILED"
    return tracked, status, track_results.fn(run_path, tracked, status)


def track_page(run_dir: RunDir, tracked: TrackedRun) -> tuple[str, ...]:
    """Log the page of a run as it is now; return what could not be tracked."""
    problems: list[str] = []
    with collect_problems(problems, "the page is not in MLflow", f"; `grpo report {path_argument(run_dir.path)}` tries again"):
        make_client(tracked.uri, create=False).log_artifact(tracked.run_id, str(run_dir.page))
    return tuple(problems)
