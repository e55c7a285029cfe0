"""The only writer to MLflow: journal records in, batches out.

Explicit run ids and `MlflowClient` throughout: the fluent API has one active run a process and ends failed runs as FINISHED.
Exactly once: rows carry the journal's time stamps, and nothing at or below the high-water mark, which is read back from MLflow
at the start, is sent again.
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.analysis.rules import Alert
from grpo_core.config import RunConfig
from grpo_core.config.flat import flatten
from grpo_core.errors import TrackingError
from grpo_core.journal import Record, read_journal
from grpo_core.rundir import RunDir

logger = logging.getLogger(__name__)

SHIP_SECONDS = 1.0
MAX_METRICS = 1000
"""MLflow's limit for one log_batch."""
END_SECONDS = 60.0
"""How long the end of a run waits for a tracking server that is away."""
INTERRUPTED_SECONDS = 3.0
"""The same for a run that was interrupted: Prefect kills a cancelled flow 30 s after it asked."""

Status = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Where a run is tracked."""

    uri: str
    experiment_id: str
    run_id: str
    name: str

    @property
    def address(self) -> str:
        """The run's page: below the server's address, or below the one that `mlflow ui` prints."""
        base = self.uri if self.uri.startswith("http") else "http://127.0.0.1:5000"
        return f"{base.rstrip('/')}/#/experiments/{self.experiment_id}/runs/{self.run_id}"

    @property
    def ui_command(self) -> str:
        """What to type to look at it."""
        return "" if self.uri.startswith("http") else f"mlflow ui --backend-store-uri {self.uri}, then"


def tracking_uri(config: RunConfig, run_path: Path) -> str:
    """Return `tracking.uri`, else MLFLOW_TRACKING_URI, else SQLite beside the run directories."""
    configured = config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    return configured or f"sqlite:///{run_path.resolve().parent / 'mlflow.db'}"


@task(name="open-tracking", cache_policy=NO_CACHE)
def open_tracking(run_path: Path) -> TrackedRun:
    """Create the MLflow run and remember it in tracking.json, before anything costly is done.

    Raises:
        TrackingError: the store or server cannot be used.
    """
    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    uri = tracking_uri(config, run_path)
    name = config.tracking.run_name or run_name(config)
    try:
        with _short_retries():
            client = _client(uri)
            experiment_id = _experiment(client, uri, config.tracking.experiment, run_path)
            run = client.create_run(experiment_id, run_name=name, tags=_start_tags(config, run_path))
            client.log_batch(run.info.run_id, params=_params(config))
    except Exception as error:  # mlflow raises unrelated types for each store
        cause = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        raise TrackingError(
            f"tracking.uri {uri}: the tracking server cannot be used ({cause}); start it, correct tracking.uri or "
            "MLFLOW_TRACKING_URI, or unset both to track in a local SQLite file"
        ) from error
    tracked = TrackedRun(uri=uri, experiment_id=experiment_id, run_id=run.info.run_id, name=name)
    run_dir.tracking_file.write_text(json.dumps(asdict(tracked), indent=2) + "\n")
    return tracked


@task(name="track-inputs", cache_policy=NO_CACHE)
def track_inputs(run_path: Path, tracked: TrackedRun) -> None:
    """Log what the run is made with: config, provenance, frozen prompts, and the data set as an input."""
    import mlflow
    import pandas
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.entities import DatasetInput, InputTag

    from grpo_core.data.frozen import load_frozen

    run_dir, client = RunDir(run_path), _client(tracked.uri)
    provenance = json.loads(run_dir.provenance_file.read_text())
    for key in ("git_commit", "config_digest", "data_digest", "model_digest"):
        if provenance[key] is not None:
            client.set_tag(tracked.run_id, key, provenance[key])
    client.log_artifact(tracked.run_id, str(run_dir.config_file))
    client.log_artifact(tracked.run_id, str(run_dir.provenance_file))
    client.log_artifacts(tracked.run_id, str(run_dir.data), "data")
    inputs = []
    train, held_out = load_frozen(run_dir.data)
    for split, context, prompts in (("train", "training", train), ("eval", "evaluation", held_out)):
        frame = pandas.DataFrame({"prompt": [prompt.text for prompt in prompts]})
        source = CodeDatasetSource({"data.source": run_dir.read_config().data.source, "artifact": f"data/{split}.jsonl"})
        data = mlflow.data.from_pandas(frame, source=source, name=f"{split}-prompts", digest=provenance["data_digest"][:8])
        inputs.append(DatasetInput(data._to_mlflow_entity(), [InputTag("mlflow.data.context", context)]))
    client.log_inputs(tracked.run_id, datasets=inputs)


@task(name="track-results", cache_policy=NO_CACHE)
def track_results(run_path: Path, tracked: TrackedRun, status: Status) -> tuple[str, ...]:
    """Ship what is left of the journal, log tables, figures and policy, end the run; return what could not be tracked.

    A run that was interrupted has little time left: nothing is waited for and the policy is not copied.
    """
    run_dir, client, finished = RunDir(run_path), _client(tracked.uri), status == "FINISHED"
    problems = []
    shipper = Shipper(tracked)
    for record in read_journal(run_dir.journal_file) if run_dir.journal_file.exists() else []:
        shipper.add(record)
    unshipped = shipper.ship_all(END_SECONDS if finished else INTERRUPTED_SECONDS)
    if unshipped:
        problems.append(f"{unshipped} records of {run_dir.journal_file} are not in MLflow ({shipper.last_error})")
    try:
        with _short_retries():
            _log_results(client, run_dir, tracked, with_policy=finished)
    except Exception as error:  # noqa: BLE001  (a figure that cannot be uploaded does not make a training fail)
        problems.append(f"artifacts are not all in MLflow ({type(error).__name__}: {error}); they are in {run_dir.path}")
    try:
        with _short_retries():
            client.set_terminated(tracked.run_id, status)
    except Exception as error:  # noqa: BLE001  (as above)
        problems.append(f"the MLflow run could not be ended as {status} ({type(error).__name__}: {error})")
    return tuple(" ".join(problem.split()) for problem in problems)


@contextmanager
def end_tracking(run_path: Path, tracked: TrackedRun) -> Iterator[None]:
    """End the MLflow run with the right status if what is inside is interrupted (KILLED) or fails (FAILED)."""
    try:
        yield
    except BaseException as error:
        status: Status = "FAILED" if isinstance(error, Exception) else "KILLED"
        for problem in track_results.fn(run_path, tracked, status):
            logger.warning(problem)
        raise


class Shipper:
    """Collects records and sends them in batches; while the server is away they wait here."""

    def __init__(self, tracked: TrackedRun) -> None:
        """Continue where an earlier shipper of the same run ended."""
        self._tracked = tracked
        self._client = _client(tracked.uri)
        self._waiting: list[Record] = []
        self._tags: dict[str, str] = {}
        self._marks: dict[str, int] = {}
        self._next_ship = 0.0
        self.last_error = ""
        """What the last attempt to send met; empty while all went well."""

    def add(self, record: Record) -> None:
        """Take one record; it is sent by a later `ship`."""
        if record.metrics:
            self._waiting.append(record)

    def add_alert(self, alert: Alert) -> None:
        """Take one alert: a tag that says which bound was crossed by which value at which step."""
        about = [alert.rule.kind, *([alert.rule.metric] if alert.rule.metric else [])]
        self._tags[".".join(["alert", *about])] = alert.text

    def ship(self) -> bool:
        """Send what waits, at most about once a second; return whether nothing waits any more. Never raises for an outage."""
        if not (self._waiting or self._tags):
            return True
        if time.monotonic() < self._next_ship:
            return False
        self._next_ship = time.monotonic() + SHIP_SECONDS
        try:
            with _short_retries():
                self._send()
        except Exception as error:  # noqa: BLE001  (an outage of any kind: the records wait, training goes on)
            self.last_error = f"{type(error).__name__}: {error}"
            self._next_ship = time.monotonic() + 5 * SHIP_SECONDS
            return False
        return True

    def ship_all(self, seconds: float = END_SECONDS) -> int:
        """Send everything, waiting up to `seconds` for a server that is away; return how many records are left."""
        deadline = time.monotonic() + seconds
        while not self.ship() and time.monotonic() < deadline:
            time.sleep(0.2)
        return len(self._waiting)

    def _send(self) -> None:
        from mlflow.entities import Metric, RunTag

        fresh = [record for record in self._waiting if record.step > self._mark(record)]
        for records in _batches(fresh):
            rows = [
                Metric(key, value, record.timestamp_ms, record.step)
                for record in records
                for key, value in record.metrics.items()
            ]
            self._client.log_batch(self._tracked.run_id, metrics=rows)
            for record in records:
                self._marks[_mark_key(record)] = record.step
        self._waiting.clear()
        if self._tags:
            self._client.log_batch(self._tracked.run_id, tags=[RunTag(key, text) for key, text in self._tags.items()])
            self._tags.clear()

    def _mark(self, record: Record) -> int:
        """Return the last step of this kind of record that MLflow holds, read back once; -1 where it holds none."""
        key = _mark_key(record)
        if key not in self._marks:
            history = self._client.get_metric_history(self._tracked.run_id, key)
            self._marks[key] = max((metric.step for metric in history), default=-1)
        return self._marks[key]


def _mark_key(record: Record) -> str:
    """Return a key that every record of this kind (of evaluations: of this set) holds."""
    return "progress/step" if record.kind == "step" else f"eval/{record.data['set']}/greedy_accuracy"


def _batches(records: list[Record]) -> Iterator[list[Record]]:
    """Cut records into runs of at most MAX_METRICS figures; a record is never split, so a mark covers all its keys."""
    batch: list[Record] = []
    for record in records:
        if batch and sum(len(other.metrics) for other in batch) + len(record.metrics) > MAX_METRICS:
            yield batch
            batch = []
        batch.append(record)
    if batch:
        yield batch


@contextmanager
def system_metrics(tracked: TrackedRun) -> Iterator[None]:
    """Log CPU, memory and GPU use of this machine while inside."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    watcher = SystemMetricsMonitor(tracked.run_id, resume_logging=True, tracking_uri=tracked.uri)
    watcher.start()
    try:
        yield
    finally:
        watcher.finish()


def run_name(config: RunConfig) -> str:
    """Return what tells runs apart: `beta=0.04 G=8 sync=20 seed=0`."""
    sync = config.reference.sync_steps or "never"
    return f"beta={config.loss.beta:g} G={config.rollout.group_size} sync={sync} seed={config.training.seed}"


def _client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


@contextmanager
def _short_retries() -> Iterator[None]:
    """Let the caller decide how long to wait: MLflow's own retries would block for minutes."""
    names = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _experiment(client: Any, uri: str, name: str, run_path: Path) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    local = uri.startswith("sqlite")
    location = (run_path.resolve().parent / "mlartifacts").as_uri() if local else None
    # Without a kind the UI guesses, and shows a training as an evaluation of prompts.
    tags = {"mlflow.experimentKind": "custom_model_development"}
    return str(client.create_experiment(name, artifact_location=location, tags=tags))


def _start_tags(config: RunConfig, run_path: Path) -> dict[str, str]:
    from prefect.runtime import flow_run

    return {
        "seed": str(config.training.seed),
        "run_dir": str(run_path.resolve()),
        "prefect.flow_run_id": str(flow_run.id or ""),
        "mlflow.source.name": "grpo",
    }


def _params(config: RunConfig) -> list[Any]:
    from mlflow.entities import Param

    return [Param(key, str(value)) for key, value in flatten(config).items()]


def _log_results(client: Any, run_dir: RunDir, tracked: TrackedRun, with_policy: bool) -> None:
    for file in (run_dir.journal_file, run_dir.alerts_file, run_dir.log_file("train")):
        if file.exists():
            client.log_artifact(tracked.run_id, str(file))
    for folder in (run_dir.completions, run_dir.eval, run_dir.report):
        if folder.exists():
            client.log_artifacts(tracked.run_id, str(folder), folder.name)
    # log_table appends to a table of the same name.
    present = {file.path for file in client.list_artifacts(tracked.run_id, "tables")}
    for name, table in _tables(run_dir).items():
        if f"tables/{name}.json" in present:
            continue
        client.log_table(tracked.run_id, data=table, artifact_file=f"tables/{name}.json")
    if with_policy:
        _log_policy(client, run_dir, tracked)


def _tables(run_dir: RunDir) -> Mapping[str, Any]:
    """Return what the MLflow UI shows as tables: syncs, the last step's completions, the evaluations' completions."""
    import pandas

    from grpo_core.analysis.tables import sync_table

    tables = {}
    if run_dir.journal_file.exists():
        tables["ref_syncs"] = sync_table(read_journal(run_dir.journal_file))
    steps = sorted(run_dir.completions.glob("*.parquet"))
    if steps:
        tables["completions_last_step"] = pandas.read_parquet(steps[-1])
    for file in sorted(run_dir.eval.glob("*.parquet")):
        tables[f"completions_eval_{file.stem}"] = pandas.read_parquet(file)
    return tables


def _log_policy(client: Any, run_dir: RunDir, tracked: TrackedRun) -> None:
    from grpo_core.policy.checkpoint import list_checkpoints
    from grpo_core.policy.loading import weights_digest

    checkpoints = list_checkpoints(run_dir.checkpoints)
    if not checkpoints:
        return
    policy = checkpoints[-1] / "policy"
    client.set_tag(tracked.run_id, "policy_path", str(policy.resolve()))
    client.set_tag(tracked.run_id, "policy_digest", weights_digest(policy))
    if run_dir.read_config().tracking.log_policy:
        client.log_artifacts(tracked.run_id, str(policy), "policy")
