"""The MLflow run of a training: a new one, or the one that it had before it was interrupted; what its page shows first."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tenacity import retry, stop_after_attempt

from grpo_core.config import Origin, RunConfig, run_name
from grpo_core.config.origin import flatten
from grpo_core.errors import TrackingError
from grpo_core.machine.disk import sqlite_file
from grpo_core.machine.jsonfile import write_json
from grpo_core.run.flow_folder import FlowDir
from grpo_core.run.folder import RunDir
from grpo_core.sweep.folder import mlflow_run_id
from grpo_core.text import for_code, for_link, for_markdown
from tasks.away import prefect_may_be_away
from tasks.links import prefect_run_page
from tasks.process.context import prefect_is_embedded
from tasks.run.progress import say
from tasks.tracking.guards import ARTIFACTS
from tasks.tracking.store import TrackedRun, make_client
from tasks.tracking.view import SavedView, ensure_view

PARENT = "mlflow.parentRunId"
"""The tag by which MLflow nests a run below another."""
NOTE = "mlflow.note.content"
"""The tag that MLflow shows as the description."""
STOP_TAG = "grpo.stop"
"""Set on a running MLflow run, by hand or by a program, it ends the training after its step; its value is the reason."""

COPY_TAG = "grpo.copy_of"
"""The MLflow run of the folder that this run's folder was copied from."""


def open_new(run_dir: RunDir, uri: str, copy_of: str | None = None) -> TrackedRun:
    """Return a new MLflow run that holds the configuration; that of a copied folder names the run of its original."""
    config, origin = run_dir.read_config(), run_dir.read_origin()
    tags = _start_tags(config, origin, run_dir.path) | ({COPY_TAG: copy_of} if copy_of else {})
    view = SavedView()
    return create_run(run_dir, config, uri, run_name(config, origin), tags=tags, params=_params(config), view=view)


def create_run(
    flow_dir: FlowDir,
    config: RunConfig,
    uri: str,
    name: str,
    *,
    tags: Mapping[str, str],
    params: Mapping[str, str],
    view: SavedView,
) -> TrackedRun:
    """Return a new MLflow run of a run or sweep, noted in its folder; its experiment has the view afterwards."""
    client = make_client(uri)
    experiment_id = _find_experiment(client, uri, config.tracking.experiment, flow_dir.path)
    view_id = ensure_view(client, experiment_id, view)
    run = client.create_run(experiment_id, run_name=name, tags=tags)
    tracked = TrackedRun(uri=uri, experiment_id=experiment_id, run_id=run.info.run_id, name=name, view=view_id)
    # At once: whoever resumes a run that dies here finds this one.
    write_json(flow_dir.tracking_file, asdict(tracked), private=True)
    _log_params(client, tracked, params)
    return tracked


def _log_params(client: Any, tracked: TrackedRun, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    client.log_batch(tracked.run_id, params=[Param(key, value) for key, value in params.items()])


def find_original(run: Any, flow_dir: FlowDir) -> Path | None:
    """Return the folder of which this one is a copy: the one where its MLflow run was last opened, if that is still there.

    A folder that was moved keeps its run.
    """
    there = FlowDir(Path(run.data.tags.get(_place_tag(flow_dir)) or flow_dir.path))
    is_original = mlflow_run_id(there) == run.info.run_id and not there.path.samefile(flow_dir.path)
    return there.path if is_original else None


def refuse_copy(run: Any, flow_dir: FlowDir, remedy: str) -> None:
    """Refuse to write to the MLflow run of another folder.

    Raises:
        TrackingError: this folder is a copy.
    """
    if original := find_original(run, flow_dir):
        raise TrackingError(
            f"{flow_dir.what} {flow_dir.path}: its MLflow run {run.info.run_id} belongs to {original}; {remedy}"
        )


def take_over(client: Any, flow_dir: FlowDir, tracked: TrackedRun) -> None:
    """Let an MLflow run run again, in this folder."""
    write_json(flow_dir.tracking_file, asdict(tracked), private=True)
    client.set_tag(tracked.run_id, _place_tag(flow_dir), str(flow_dir.path.resolve()))
    client.update_run(tracked.run_id, status="RUNNING")


def _place_tag(flow_dir: FlowDir) -> str:
    return flow_dir.what.replace(" ", "_")


def find_run(client: Any, run_id: str) -> Any | None:
    """Return an MLflow run; None where there is none, or it was deleted."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return None if run.info.lifecycle_stage == "deleted" else run


def reopen(run_dir: RunDir, known: TrackedRun) -> TrackedRun | None:
    """Return the MLflow run of a resumed training, running again; None where it has none any more.

    A copy of the folder that the run belongs to gets a new one.
    """
    client = make_client(known.uri)
    run = find_run(client, known.run_id)
    if run is None:
        return None
    if original := find_original(run, run_dir):
        say(f"MLflow run {known.run_id} belongs to {original}; this copy gets a run of its own")
        return open_new(run_dir, known.uri, copy_of=known.run_id)
    config = run_dir.read_config()
    tracked = replace(known, view=ensure_view(client, known.experiment_id, SavedView()))
    take_over(client, run_dir, tracked)
    _log_params(client, tracked, _params(config))  # the attempt before may have died before it did
    if STOP_TAG in run.data.tags:  # it has ended the training before; whoever resumes it wants it to continue
        client.delete_tag(tracked.run_id, STOP_TAG)
    return tracked


def link_mlflow(tracked: TrackedRun) -> None:
    """Add an artifact to the flow run in Prefect with links to the MLflow run and to the charts of its experiment.

    Nothing is added where a link would lead nowhere: to a store without a server, or from an embedded Prefect.
    """
    from prefect.artifacts import create_markdown_artifact
    from prefect.runtime import flow_run

    if not tracked.has_pages or not flow_run.id or prefect_is_embedded():
        return
    links = {"this run in MLflow": tracked.address, "charts of all runs of the experiment": tracked.charts_address}
    text = "\n".join(f"- [{label}]({for_link(address)})" for label, address in links.items())
    with prefect_may_be_away():
        create_markdown_artifact(text, key="mlflow", description=f"MLflow: {for_markdown(tracked.name)}")


@retry(stop=stop_after_attempt(2), reraise=True)  # of runs that start together, another one may have been faster
def _find_experiment(client: Any, uri: str, name: str, run_path: Path) -> str:
    """Return the id of an experiment, made where there is none; artifacts of a SQLite store lie beside its file."""
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    beside = sqlite_file(uri) or run_path
    location = (beside.resolve().parent / ARTIFACTS).as_uri() if uri.lower().startswith("sqlite") else None
    # Without a kind the UI guesses, and shows a training as an evaluation of prompts.
    tags = {"mlflow.experimentKind": "custom_model_development"}
    return str(client.create_experiment(name, artifact_location=location, tags=tags))


def _describe(config: RunConfig, origin: Origin, run_path: Path, flow_run_page: str) -> str:
    """Return the description, in Markdown: what differs from the preset, how to see more, how to stop."""
    rows = [
        f"| {for_code(key, in_table=True)} | {_cell(before)} | {_cell(now)} |" for key, (before, now) in origin.changes.items()
    ]
    table = ["| key | preset | this run |", "|---|---|---|", *rows] if rows else ["Exactly as the preset says."]
    return "\n".join(
        [
            f"**{for_markdown(origin.preset)}**: {for_markdown(config.model.source)} on {for_markdown(config.data.source)}"
            f"{link_back(flow_run_page)}",
            "",
            *table,
            "",
            f"Where it is: {for_code(f'grpo status {shlex.quote(str(run_path.resolve()))}')}. "
            f"A training ends after its step when the tag `{STOP_TAG}` is set here.",
        ]
    )


def link_back(flow_run_page: str) -> str:
    """Return the end of a description's first line, which MLflow shows unfolded: a link to the flow run, if it has a page."""
    return f" · [Flow run in Prefect]({for_link(flow_run_page)})" if flow_run_page else ""


def _cell(value: Any) -> str:
    return "null" if value is None else for_markdown(str(value))


def _start_tags(config: RunConfig, origin: Origin, run_path: Path) -> dict[str, str]:
    """Return the tags with which a run begins."""
    from prefect.runtime import flow_run

    page = prefect_run_page()
    return {
        NOTE: _describe(config, origin, run_path, page),
        "preset": origin.preset,
        "seed": str(config.training.seed),
        "run_dir": str(run_path.resolve()),
        "prefect.flow_run_id": str(flow_run.id or ""),
        "prefect.flow_run_url": page,
        "mlflow.source.name": "grpo",
        **({PARENT: config.tracking.parent} if config.tracking.parent else {}),
        **config.tracking.labels,
    }


def _params(config: RunConfig) -> dict[str, str]:
    """Return the labels and the flattened configuration; the compare page and parallel coordinates use them as they are."""
    others = {key: str(value) for key, value in flatten(config).items() if not key.startswith("tracking.labels")}
    return {**config.tracking.labels, **others}
