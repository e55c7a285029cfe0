"""Read back from MLflow the figures of a run whose journal is damaged."""

import math
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig, validate_config
from grpo_core.errors import TrackingError, cause
from grpo_core.machine.jsonfile import read_json
from grpo_core.metrics import is_registered
from grpo_core.run.folder import RunDir
from grpo_core.run.rebuild import Point, Tracked
from tasks.tracking.store import make_client, read_tracked, short_retries, tracking_uri

OF_EVALUATIONS = "eval/"


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
