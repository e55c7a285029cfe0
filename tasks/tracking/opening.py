"""The MLflow run of a training or a sweep: a new one, or the one that it had before it was interrupted; what pages show first.

MLflow opens an experiment, or the runs of a sweep, with a saved view, which is one tag of the experiment: the drift to the
reference, its syncs, the reward and the accuracy stand on top, the other metrics of each area in a section that is folded;
MLflow adds a section for those with names of their own (rewards, evaluation sets). `view.json` holds what MLflow 3.17 writes
when somebody saves a view.
"""

import base64
import contextlib
import json
import logging
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from tenacity import retry, stop_after_attempt

from grpo_core.config import run_name
from grpo_core.config.loading import KNOBS
from grpo_core.config.origin import flatten
from grpo_core.errors import cause
from grpo_core.machine.disk import sqlite_file, write_json
from grpo_core.metrics import REGISTRY
from grpo_core.run.flow_folder import FlowDir
from grpo_core.run.folder import RunDir
from grpo_core.sweep.display import MEASURES
from grpo_core.text import for_code, for_link, for_markdown, for_terminal
from tasks.process.context import flow_run_page, prefect_is_embedded
from tasks.process.prefect_outage import prefect_may_be_away
from tasks.tracking.store import ARTIFACTS, TrackedRun, make_client

logger = logging.getLogger(__name__)

PARENT = "mlflow.parentRunId"
"""The tag by which MLflow nests a run below another."""
NOTE = "mlflow.note.content"
"""The tag that MLflow shows as the description."""
STOP_TAG = "grpo.stop"
"""Set on a running MLflow run, by hand or by a program, it ends the training after its step; its value is the reason."""
TIMES = {"createdAt": 1_795_000_000_000, "updatedAt": 1_795_000_000_000}
"""Of a saved view; constant: two runs that write it at the same time write the same."""


@dataclass(frozen=True, kw_only=True)
class SavedView:
    """A saved view; links name it by its id."""

    id: str = "grpo"
    name: str = "GRPO: KL and syncs"
    search: str = ""
    """MLflow's filter of runs, of a sweep's, whose results are open then; empty = all."""
    params: tuple[str, ...] = tuple(KNOBS.values())
    """Of the parallel coordinates."""


def open_training(run_dir: RunDir, known: TrackedRun | None, uri: str) -> TrackedRun:
    """Return the MLflow run of a training or an evaluation, as `open_run`; it holds the configuration.

    Its description says what differs from the preset, how to see more, and how to stop it.
    """
    config, origin = run_dir.read_config(), run_dir.read_origin()
    begun = origin.forked_from or {}
    shown = ((key, *("null" if one is None else for_markdown(str(one)) for one in was)) for key, was in origin.changes.items())
    table = [f"| {for_code(key, in_table=True)} | {before} | {now} |" for key, before, now in shown]
    note = [
        f"**{for_markdown(origin.preset)}**: {for_markdown(config.model.source)} on {for_markdown(config.data.source)}",
        "",
        *([f"Forked from {for_code(str(begun['run']))} at step {begun['step']}.", ""] if begun else []),
        *(["| key | preset | this run |", "|---|---|---|", *table] if table else ["Exactly as the preset says."]),
        "",
        f"Where it is: {for_code(f'grpo status {shlex.quote(str(run_dir.path.resolve()))}')}. "
        f"A training ends after its step when the tag `{STOP_TAG}` is set here.",
    ]
    labels, parent = config.tracking.labels, {PARENT: config.tracking.parent} if config.tracking.parent else {}
    # Labels by their names: the compare page and parallel coordinates use parameters as they are.
    settings = {key: str(value) for key, value in flatten(config).items() if not key.startswith("tracking.labels")}
    tracked = open_run(
        run_dir,
        known,
        uri,
        config.tracking.experiment,
        run_name(config, origin),
        note=note,
        tags={
            "preset": origin.preset,
            "seed": str(config.training.seed),
            **({"forked_from": str(begun["mlflow_run_id"] or begun["run"]), "fork_step": str(begun["step"])} if begun else {}),
            **parent,
            **labels,
        },
        params={**labels, **settings},
        view=SavedView(),
    )
    if begun.get("mlflow_run_id") and tracked != known:
        _tag_parent(str(begun["mlflow_run_id"]), tracked, f"at step {begun['step']}: {begun['changed']}")
    return tracked


def _tag_parent(run_id: str, fork: TrackedRun, text: str) -> None:
    """Say at a run that it was forked; it may be in another store, or gone."""
    from mlflow.exceptions import MlflowException

    with contextlib.suppress(MlflowException):
        make_client(fork.uri).set_tag(run_id, f"fork.{fork.run_id}", text)


def open_run(
    flow_dir: FlowDir,
    known: TrackedRun | None,
    uri: str,
    experiment: str,
    name: str,
    *,
    note: list[str],
    tags: Mapping[str, str],
    params: Mapping[str, str],
    view: SavedView,
) -> TrackedRun:
    """Return the MLflow run of a run or sweep, running and noted in its folder; its page and the flow run's link to each other.

    Args:
        flow_dir: the folder.
        known: the MLflow run that it has; a new one is made where it has none, or none any more.
        uri: where a new one is made.
        experiment: of a new one; it has the view afterwards.
        name: of the run.
        note: lines of the description; MLflow shows the first unfolded.
        tags: of a new one, beside those that every run has.
        params: of the run.
        view: with which its charts open.
    """
    run = _find_run(known) if known else None
    uri, name = (known.uri, known.name) if known and run else (uri, name)
    client = make_client(uri)
    place, place_tag = str(flow_dir.path.resolve()), flow_dir.what.replace(" ", "_")
    experiment_id = run.info.experiment_id if run else _find_experiment(client, uri, experiment, flow_dir.path)
    view_id = ensure_view(client, experiment_id, view)
    if run is None:
        run = client.create_run(experiment_id, run_name=name, tags={**_first_tags(note), place_tag: place, **tags})
    tracked = TrackedRun(uri=uri, experiment_id=experiment_id, run_id=run.info.run_id, name=name, view=view_id)
    write_json(flow_dir.tracking_file, asdict(tracked), private=True)  # at once: whoever resumes one that dies here finds it
    if not run.data.params:  # also those of a run that died before it had logged them
        _log_params(client, tracked, params)
    if known and run.info.run_id == known.run_id:
        client.set_tag(tracked.run_id, place_tag, place)
        client.update_run(tracked.run_id, status="RUNNING")
        if STOP_TAG in run.data.tags:  # it has ended the training before; whoever resumes it wants it to continue
            client.delete_tag(tracked.run_id, STOP_TAG)
    _link_in_prefect(tracked)
    return tracked


def _log_params(client: Any, tracked: TrackedRun, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    client.log_batch(tracked.run_id, params=[Param(key, value) for key, value in params.items()])


def _first_tags(note: list[str]) -> dict[str, str]:
    """Return what every new run is tagged with: its description, and the flow run that makes it."""
    page = flow_run_page()
    first = note[0] + (f" · [Flow run in Prefect]({for_link(page)})" if page else "")
    return {
        NOTE: "\n".join([first, *note[1:]]),
        "mlflow.source.name": "grpo",
        "prefect.flow_run_id": str(flow_run.id or ""),
        "prefect.flow_run_url": page,
    }


def _find_run(known: TrackedRun) -> Any | None:
    """Return an MLflow run; None where there is none any more, or it was deleted."""
    from mlflow.exceptions import MlflowException

    try:
        run = make_client(known.uri).get_run(known.run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return None if run.info.lifecycle_stage == "deleted" else run


def _link_in_prefect(tracked: TrackedRun) -> None:
    """Add an artifact to the flow run with links to MLflow, unless they would lead nowhere: to a store without a server."""
    if tracked.has_pages and flow_run.id and not prefect_is_embedded():
        charts = f"- [charts of all runs of the experiment]({for_link(tracked.charts_address)})"
        with prefect_may_be_away():
            text = f"- [this run in MLflow]({for_link(tracked.address)})\n{charts}"
            create_markdown_artifact(text, key="mlflow", description=f"MLflow: {for_markdown(tracked.name)}")


@retry(stop=stop_after_attempt(2), reraise=True)  # of runs that start together, another one may have been faster
def _find_experiment(client: Any, uri: str, name: str, run_path: Path) -> str:
    """Return the id of an experiment, made where there is none; artifacts of a SQLite store lie beside its file."""
    if found := client.get_experiment_by_name(name):
        return str(found.experiment_id)
    beside = (sqlite_file(uri) or run_path).resolve().parent / ARTIFACTS
    location = beside.as_uri() if uri.lower().startswith("sqlite") else None
    # Without a kind the UI guesses, and shows a training as an evaluation of prompts.
    kind = {"mlflow.experimentKind": "custom_model_development"}
    return str(client.create_experiment(name, artifact_location=location, tags=kind))


def ensure_view(client: Any, experiment_id: str, view: SavedView) -> str:
    """Write a saved view into an experiment that does not have it; return its id.

    A store that refuses it does not end a run: MLflow then shows its own arrangement, and the id is empty.
    """
    try:
        _write_view(client, experiment_id, view)
    except Exception as error:  # noqa: BLE001  (mlflow raises unrelated types for each store)
        logger.warning("MLflow did not take the saved view, without which charts open (%s)", for_terminal(cause(error)))
        return ""
    return view.id


@retry(stop=stop_after_attempt(2), reraise=True)  # a store refuses a tag that two runs add at the same moment
def _write_view(client: Any, experiment_id: str, view: SavedView) -> None:
    tag = f"mlflow.sharedViewState.{view.id}"
    if tag not in client.get_experiment(experiment_id).tags:
        state = base64.b64encode(zlib.compress(json.dumps(_arranged(view), separators=(",", ":")).encode(), 9))
        value = json.dumps({"name": view.name, "state": f"deflate;{state.decode()}", **TIMES})
        client.set_experiment_tag(experiment_id, tag, value)


def _arranged(view: SavedView) -> dict[str, Any]:
    """Return the state of the saved view: columns of the table, charts, and sections of charts."""
    parts = json.loads(files(__package__).joinpath("view.json").read_text())
    pinned = [metrics[0] for metrics in parts["pinned"]]
    keys = [metric.key for metric in REGISTRY if "<" not in metric.key and metric.key not in pinned]

    def chart(kind: str, section: str, key: str, **more: Any) -> dict[str, Any]:
        place = {"type": kind, "metricSectionId": f"grpo-{section}"}
        return {**parts["chart"], **parts[kind], **place, "displayName": key, "metricKey": key, **more}

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
