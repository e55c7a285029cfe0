"""The saved view with which MLflow opens an experiment, or the runs of a sweep: one tag of the experiment.

The drift to the reference, its syncs, the reward and the accuracy stand on top, the other metrics of each area in a section
that is folded; MLflow adds a section for those with names of their own (rewards, evaluation sets). `view.json` holds what
MLflow 3.17 writes when somebody saves a view. A view that somebody has changed in MLflow has lost our mark, and stays as it is.
"""

import base64
import json
import logging
import zlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tenacity import Retrying, stop_after_attempt

from grpo_core.config.loading import KNOBS
from grpo_core.errors import cause
from grpo_core.metrics import REGISTRY
from grpo_core.sweep.display import MEASURES
from grpo_core.text import for_terminal

logger = logging.getLogger(__name__)

MARK = {"grpo": True}
"""What MLflow's page does not write."""
TIMES = {"createdAt": 1_795_000_000_000, "updatedAt": 1_795_000_000_000}
"""Constant: two runs that write the view at the same time write the same."""


@dataclass(frozen=True, kw_only=True)
class SavedView:
    """A saved view; links name it by its id."""

    id: str = "grpo"
    name: str = "GRPO: KL and syncs"
    search: str = ""
    """MLflow's filter of runs, of a sweep's, whose results are open then; empty = all."""
    params: tuple[str, ...] = tuple(KNOBS.values())
    """Of the parallel coordinates."""


def ensure_view(client: Any, experiment_id: str, view: SavedView) -> str:
    """Write a saved view into an experiment where it is missing or an older one; return its id.

    A store that refuses it does not end a run: MLflow then shows its own arrangement, and the id is empty. A store also refuses
    a tag that two runs add at the same moment: the second attempt finds the other run's, which holds the same.
    """
    try:
        Retrying(stop=stop_after_attempt(2), reraise=True)(_write_view, client, experiment_id, view)
    except Exception as error:  # noqa: BLE001  (mlflow raises unrelated types for each store)
        reason = for_terminal(cause(error))
        logger.warning("MLflow did not take the saved view (%s); the charts of %s open without it", reason, experiment_id)
        return ""
    return view.id


def _write_view(client: Any, experiment_id: str, view: SavedView) -> None:
    tag = f"mlflow.sharedViewState.{view.id}"
    present = client.get_experiment(experiment_id).tags.get(tag)
    state = zlib.compress(json.dumps(_arranged(view), separators=(",", ":")).encode(), 9)
    value = json.dumps({"name": view.name, "state": f"deflate;{base64.b64encode(state).decode()}", **TIMES, **MARK})
    if present is None or (present != value and MARK.keys() <= json.loads(present).keys()):
        client.set_experiment_tag(experiment_id, tag, value)


def _arranged(view: SavedView) -> dict[str, Any]:
    """Return the state of the saved view: columns of the table, charts, and sections of charts."""
    parts = json.loads(files(__package__).joinpath("view.json").read_text())
    pinned = [metrics[0] for metrics in parts["pinned"]]
    keys = [metric.key for metric in REGISTRY if "<" not in metric.key and metric.key not in pinned]

    def chart(kind: str, section: str, key: str, **more: Any) -> dict[str, Any]:
        names = {"type": kind, "metricSectionId": f"grpo-{section}", "displayName": key, "metricKey": key}
        return {**parts["chart"], **parts[kind], **names, **more}

    charts = [
        *(chart("LINE", "GRPO", metrics[0], selectedMetricKeys=metrics) for metrics in parts["pinned"]),
        {**parts["parallel"], "selectedParams": list(view.params)},
        *(chart("BAR", "sweep", f"sweep/{key}") for key, measure in MEASURES.items() if measure.in_mlflow),
        *(chart("LINE", key.partition("/")[0], key, selectedMetricKeys=[key]) for key in keys),
    ]
    is_open = ["GRPO", "sweep"] if view.search else ["GRPO"]
    sections = dict.fromkeys([*is_open, *(key.partition("/")[0] for key in keys), "sweep", *parts["mlflow_sections"]])
    # Sorted by time, MLflow folds a sweep's runs below their parent, and draws none that is folded.
    order = {"orderByKey": "metrics.`sweep/objective`", "orderByAsc": False} if view.search else {}
    return {
        **parts["state"],
        "compareRunCharts": [{**one, "uuid": f"grpo-{number}"} for number, one in enumerate(charts)],
        "compareRunSections": [
            {**parts["section"], "uuid": f"grpo-{name}", "name": name, "display": name in is_open} for name in sections
        ],
        "searchFilter": view.search,
        **order,
    }
