"""The saved view with which MLflow opens an experiment, or the runs of a sweep: one tag of the experiment.

The drift to the reference, its syncs, the reward and the accuracy stand on top, the metrics of each area in a section that is
folded. `view.json` holds what MLflow 3.17 writes when somebody saves a view. A view that somebody has changed in MLflow is
written without our mark, and stays as it is.
"""

import base64
import json
import logging
import zlib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from tenacity import Retrying, stop_after_attempt

from grpo_core.config import RunConfig
from grpo_core.config.loading import KNOBS
from grpo_core.config.names import reward_name
from grpo_core.errors import cause
from grpo_core.evaluation.results import HELD_OUT, HELD_OUT_SAMPLE, set_name
from grpo_core.metrics import REGISTRY
from grpo_core.plain_text import for_terminal
from grpo_core.sweep.measures import MEASURES

logger = logging.getLogger(__name__)

MARK = "grpo"
"""The key of the tag that MLflow's page does not write: the metrics with names of their own."""
TOP, SWEEP = "GRPO", "sweep"
"""Sections that are open: what is pinned, and the results of a sweep's runs."""
WRITTEN_MS = 1_795_000_000_000
"""Constant: two runs that write the view at the same time write the same."""


@dataclass(frozen=True, kw_only=True)
class SavedView:
    """A saved view; links name it by its id."""

    id: str = "grpo"
    name: str = "GRPO: KL and syncs"
    own: frozenset[str]
    """Metrics with names of their own, of rewards and evaluation sets; those of earlier runs stay in the view."""
    search: str = ""
    """MLflow's filter of runs, of a sweep's; empty = all."""
    params: tuple[str, ...] = tuple(KNOBS.values())
    """Of the parallel coordinates."""


def own_metrics(config: RunConfig) -> frozenset[str]:
    """Return the metrics of a run whose names depend on its configuration: of its rewards and its evaluation sets."""
    rewards = {
        f"reward/{reward_name(reward.fn)}/{of}"
        for reward in config.rewards
        for of in ("mean", "std", "unscorable_frac", "timeout_frac")
    }
    figures = ["greedy_accuracy", "greedy_score", "completion_tokens", *(f"pass_at_{k}" for k in config.evaluation.k)]
    sets = (HELD_OUT, HELD_OUT_SAMPLE, set_name(config.data.source))
    return frozenset(rewards | {f"eval/{name}/{figure}" for name in sets for figure in figures})


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
    value = updated_view(present, view)
    if value != present:
        client.set_experiment_tag(experiment_id, tag, value)


def updated_view(present: str | None, view: SavedView) -> str:
    """Return what the tag of a view should hold; `present` is what it holds, None where there is none."""
    envelope = json.loads(present) if present else {MARK: []}
    if MARK not in envelope:
        return str(present)
    return written_view(replace(view, own=view.own.union(envelope[MARK])))


def written_view(view: SavedView) -> str:
    """Return a view as MLflow stores it."""
    state = zlib.compress(json.dumps(_arranged(view), separators=(",", ":")).encode(), 9)
    times = {"createdAt": WRITTEN_MS, "updatedAt": WRITTEN_MS}
    packed = f"deflate;{base64.b64encode(state).decode()}"
    return json.dumps({"name": view.name, **times, "state": packed, MARK: sorted(view.own)})


def _arranged(view: SavedView) -> dict[str, Any]:
    """Return the state of the saved view: columns of the table, charts, and sections of charts."""
    parts = json.loads(files(__package__).joinpath("view.json").read_text())
    pinned = [metrics[0] for metrics in parts["pinned"]]
    known = [metric.key for metric in REGISTRY if "<" not in metric.key]
    keys = [key for key in (*known, *sorted(view.own)) if key not in pinned]

    def chart(kind: str, section: str, key: str) -> dict[str, Any]:
        names = {"type": kind, "metricSectionId": f"grpo-{section}", "displayName": key, "metricKey": key}
        return {**parts["chart"], **parts[kind], **names}

    charts = [
        *({**chart("LINE", TOP, metrics[0]), "selectedMetricKeys": metrics} for metrics in parts["pinned"]),
        {**parts["parallel"], "selectedParams": list(view.params)},
        *(chart("BAR", SWEEP, f"sweep/{key}") for key, measure in MEASURES.items() if measure.in_mlflow),
        *({**chart("LINE", key.partition("/")[0], key), "selectedMetricKeys": [key]} for key in keys),
    ]
    is_open = [TOP, *([SWEEP] if view.search else [])]
    sections = dict.fromkeys([*is_open, *(key.partition("/")[0] for key in keys), SWEEP, *parts["mlflow_sections"]])
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
