"""Read back what an earlier run left in MLflow: its files, and the figures of one whose journal is damaged."""

import math
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig, validate_config
from grpo_core.errors import ModelError, TrackingError, cause
from grpo_core.machine.jsonfile import read_json
from grpo_core.metrics import is_registered
from grpo_core.policy.sources.weight_files import weights_digest
from grpo_core.run.flow_folder import FlowDir
from grpo_core.run.folder import RunDir
from grpo_core.run.rebuild import Point, Tracked
from tasks.credentials import environment_uri
from tasks.tracking.store import (
    default_uri,
    make_client,
    read_tracked,
    read_tracking_file,
    short_retries,
    tracking_errors,
    tracking_uri,
)

MLFLOW_RUN_ID = re.compile(r"[0-9a-f]{32}")
POLICY = "policy"
SETTINGS = ("config.json", "origin.json", "provenance.json", "data")
RECORDS = (*SETTINGS, "journal.jsonl")
OF_EVALUATIONS = "eval/"


def is_mlflow_run(name: str) -> bool:
    """Return whether a run that a user names is given by its id in MLflow; a folder of that name comes first."""
    return MLFLOW_RUN_ID.fullmatch(name) is not None and not Path(name).exists()


def fetch_policy(run_id: str, target: Path) -> tuple[RunDir, Path, int]:
    """Download configuration and frozen prompts of a run into `target`, and its policy unless it is still where it was saved.

    Returns:
        (a run dir with configuration and data, the folder of the policy, its step)

    Raises:
        TrackingError: MLflow cannot be reached, or the run is not a training of this project.
        ModelError: the run's policy is neither in MLflow nor where its tag says.
    """
    facts = _download(run_id, target, SETTINGS)
    RunDir(target).close_private_files()
    folder = _saved_policy(facts.tags)
    if folder is None:
        _download(run_id, target, (POLICY,))
        folder = target / POLICY
    if not folder.is_dir():
        raise ModelError(
            f"policy {run_id}: the weights are not in MLflow (tracking.log_policy was off, or the run was interrupted) and not "
            f"unchanged in {facts.tags.get('policy_path', 'a folder that it names')}; give a checkpoint"
        )
    return RunDir(target), folder, int(facts.metrics.get("progress/step", 0))


def fetch_records(run_id: str, target: Path) -> Any:
    """Download all that a run was made with, and its journal, into `target`, laid out as a run dir.

    Returns:
        the tags and figures of the run

    Raises:
        TrackingError: MLflow cannot be reached, the run is not a training of this project, or it has not ended yet.
    """
    facts = _download(run_id, target, RECORDS)
    missing = [name for name in RECORDS if not (target / name).exists()]
    if missing:
        raise TrackingError(f"run {run_id}: MLflow does not hold its {', '.join(missing)}; they come when a run ends")
    return facts


def find_folder(run_id: str) -> Path | None:
    """Return the folder of a run or sweep of MLflow where it is on this machine and still that run's; else None.

    Raises:
        TrackingError: MLflow cannot be reached, or does not hold the run.
    """
    uri = environment_uri() or default_uri(Path("runs"))
    with tracking_errors(f"run {run_id}: cannot be read from MLflow at {uri}", "set MLFLOW_TRACKING_URI to its store"):
        tags = make_client(uri, create=False).get_run(run_id).data.tags
    place = tags.get("run_dir") or tags.get("sweep_dir")
    if not place:
        return None
    folder = Path(place)
    try:
        is_its = read_tracking_file(FlowDir(folder).tracking_file).run_id == run_id
    except (OSError, ValueError):
        return None
    return folder if is_its else None


def _download(run_id: str, target: Path, names: Sequence[str]) -> Any:
    """Download those of the named artifacts that there are; return what MLflow knows of the run beside its files."""
    uri = environment_uri() or default_uri(Path("runs"))
    target.mkdir(parents=True, exist_ok=True)
    what = f"run {run_id}: cannot be read from MLflow at {uri}"
    with tracking_errors(what, "set MLFLOW_TRACKING_URI to its store"):
        client = make_client(uri, create=False)
        run = client.get_run(run_id)
        present = {file.path for file in client.list_artifacts(run_id)}
        for name in present.intersection(names):
            client.download_artifacts(run_id, name, str(target))
    if "config.json" not in present:
        raise TrackingError(f"run {run_id}: this MLflow run has no config.json, so it is not a training of this project")
    return run.data


def _saved_policy(tags: Mapping[str, str]) -> Path | None:
    """Return the folder where the run saved its policy, if it is on this machine and unchanged."""
    folder = Path(tags.get("policy_path", ""))
    try:
        unchanged = "policy_path" in tags and folder.is_dir() and weights_digest(folder) == tags.get("policy_digest")
    except ModelError:  # its weights are gone
        return None
    return folder if unchanged else None


def tracked_figures(run_dir: RunDir) -> Tracked:
    """Return every figure that MLflow holds of a run, by step, with the time of its journal record.

    Raises:
        TrackingError: the run was never tracked, or MLflow cannot be reached.
    """
    known, config = read_tracked(run_dir), run_dir.read_config()
    failures = []
    for uri in dict.fromkeys((known.uri, tracking_uri(config, run_dir.path))):  # as in `reopen`: it may have moved
        try:
            with short_retries():
                return _read(make_client(uri), known.run_id, config)
        except Exception as error:  # noqa: BLE001  (mlflow raises unrelated types for each store)
            failures.append(cause(error))
    raise TrackingError(
        f"run dir {run_dir.path}: MLflow run {known.run_id} cannot be read ({'; '.join(failures)}); start its server or set "
        "MLFLOW_TRACKING_URI, or use `--repair cut`"
    )


def _read(client: Any, run_id: str, config: RunConfig) -> Tracked:
    run = client.get_run(run_id)
    figures: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    times: dict[tuple[str, int], int] = {}
    for key in filter(is_registered, run.data.metrics):
        name = key.split("/")[1] if key.startswith(OF_EVALUATIONS) else ""
        for point in client.get_metric_history(run_id, key):
            place = name, int(point.step)
            figures[place].setdefault(key, _journalled(point.value))
            times[place] = min(int(point.timestamp), times.get(place, sys.maxsize))
    points = {place: Point(time_ms=times[place], metrics=metrics) for place, metrics in figures.items()}
    return Tracked(
        began_ms=int(run.info.start_time),
        config=_began_with(client, run_id) or config,
        steps={step: point for (name, step), point in points.items() if not name and "progress/step" in point.metrics},
        evaluations={place: point for place, point in points.items() if place[0]},
    )


def _journalled(value: float) -> float:
    """Return a figure as it was sent: MLflow's stores have no infinities and keep the largest number instead."""
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max * (1 - 1e-12) else float(value)


def _began_with(client: Any, run_id: str) -> RunConfig | None:
    """Return the configuration that was tracked when the run began; None where it is not there."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return validate_config(read_json(Path(client.download_artifacts(run_id, "config.json", folder))))
        except Exception:  # noqa: BLE001  (as above; or it is no configuration)
            return None
