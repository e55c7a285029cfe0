"""What flow runs are called and tagged in Prefect's UI: what they differ in."""

from pathlib import Path
from typing import Any

from prefect import get_client
from prefect.runtime import flow_run

from flows.stack.worker import worker_tags
from grpo_core.config import merge_knobs, run_name
from grpo_core.config.knobs import KNOBS
from grpo_core.errors import ConfigError, GrpoError
from grpo_core.plain_text import visible
from grpo_core.redaction import redact_uri
from grpo_core.run.folder import RunDir
from grpo_core.sweep.folder import StoredSweep
from tasks.away import prefect_may_be_away
from tasks.folders import check_root
from tasks.rails import find_allowed_origin

NAME_CHARACTERS = 200


def name_flow_run() -> str:
    """Return the name of the flow run that is about to start, from its parameters: `quickstart β=0 G=8 sync=10 seed=0`."""
    given: dict[str, Any] = flow_run.parameters
    knobs = {name: given.get(name) for name in KNOBS}
    try:
        config, origin = find_allowed_origin(given["config"], merge_knobs(knobs, given.get("overrides", {})))
    except ConfigError as error:  # the flow fails with it a moment later; in the name, whoever waits for the run sees why
        return _shown(f"refused: {str(error).splitlines()[0]}")
    return _shown(config.tracking.run_name or run_name(config, origin))


def name_resumed_run() -> str:
    """Return the name of a run that goes on: `quickstart β=0 G=8 sync=10 seed=0, resumed`."""
    run_dir = RunDir(Path(flow_run.parameters["run_dir"]))
    try:
        check_root(run_dir.path, "run_dir")  # nothing is read elsewhere, and so nothing of it is in the name
        config = run_dir.read_config()
        return _shown(f"{config.tracking.run_name or run_name(config, run_dir.read_origin())}, resumed")
    except GrpoError as error:  # as above
        return _shown(f"refused: {str(error).splitlines()[0]}")


def name_reproduction() -> str:
    """Return the name of the repetition that is about to start: `runs/20261121-101500-quickstart again`."""
    return _shown(f"{flow_run.parameters['run']} again")


def name_evaluation_run() -> str:
    """Return the name of the evaluation that is about to start: `runs/20261121-101500-quickstart on its held-out prompts`."""
    given: dict[str, Any] = flow_run.parameters
    return _shown(f"{given['policy']} on {given.get('data') or given.get('config') or 'its held-out prompts'}")


def name_sweep() -> str:
    """Return the name of the sweep that is about to start: `beta_group_sync_tiny`."""
    return _shown(Path(flow_run.parameters["sweep"]).stem)


def name_resumed_sweep() -> str:
    """Return the name of a sweep that goes on: `20261121-101500-beta_group_sync_tiny, resumed`."""
    return _shown(f"{Path(flow_run.parameters['sweep_dir']).name}, resumed")


def tag_flow_run(run_path: Path) -> None:
    """Add what a list of runs is filtered by to the tags of this flow run: preset, model, data and worker."""
    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    labels = {f"{key}:{config.tracking.labels[key]}" for key in ("sweep", "arm") if key in config.tracking.labels}
    tags = {f"preset:{run_dir.read_origin().preset}", f"model:{config.model.source}", f"data:{config.data.source}", *labels}
    _add_tags(tags)


def tag_sweep(stored: StoredSweep) -> None:
    """Add a sweep's id and its worker to the tags of this flow run; its runs have the same tag."""
    _add_tags({f"sweep:{stored.id}"})


def _shown(name: str) -> str:
    """Return a name as Prefect's pages and commands show it: one line in which nothing acts, without passwords."""
    return visible(redact_uri(name))[:NAME_CHARACTERS]


def _add_tags(tags: set[str]) -> None:
    with prefect_may_be_away(), get_client(sync_client=True) as client:
        known = client.read_flow_run(flow_run.id)
        client.update_flow_run(known.id, tags={*known.tags, *(visible(redact_uri(tag)) for tag in tags), *worker_tags()})
