"""What flow runs are called and tagged in Prefect's UI: what they differ in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import get_client
from prefect.runtime import flow_run

from grpo_core.config import merge_knobs, run_name
from grpo_core.config.loading import KNOBS
from grpo_core.errors import GrpoError
from grpo_core.plain_text import visible
from grpo_core.redaction import redact_uri
from grpo_core.run.folder import RunDir
from grpo_core.sweep.folder import StoredSweep
from tasks.away import prefect_may_be_away
from tasks.folders import check_root
from tasks.process.context import worker_tags
from tasks.process.given_name import REFUSED, given_name
from tasks.rails import load_allowed

NAME_CHARACTERS = 200


def _from_parameters(name: Callable[[dict[str, Any]], str]) -> Callable[[], str]:
    """Return a function that Prefect can call for the name of a flow run that is about to start, from one of its parameters.

    A name that somebody gave the run stays. A flow that refuses its parameters fails a moment later; the name shows whoever
    waits for the run why.
    """

    def name_flow_run() -> str:
        try:
            return _shown(given_name() or name(flow_run.parameters))
        except GrpoError as error:
            return _shown(f"{REFUSED}{str(error).splitlines()[0]}")

    return name_flow_run


@_from_parameters
def name_training(given: dict[str, Any]) -> str:
    """`β=0 G=8 sync=10 seed=0 quickstart`."""
    knobs = {name: given.get(name) for name in KNOBS}
    resolved = load_allowed(given["config"], merge_knobs(knobs, given.get("overrides", {})))
    return run_name(resolved.config, resolved)


@_from_parameters
def name_resumed_run(given: dict[str, Any]) -> str:
    """`β=0 G=8 sync=10 seed=0 quickstart, resumed`."""
    run_dir = RunDir(Path(given["run_dir"]))
    check_root(run_dir.path, "run_dir")  # nothing is read elsewhere, and so nothing of it is in the name
    return f"{run_name(run_dir.read_config(), run_dir.read_origin())}, resumed"


@_from_parameters
def name_reproduction(given: dict[str, Any]) -> str:
    """`runs/20261121-101500-quickstart again`."""
    return f"{given['run']} again"


@_from_parameters
def name_evaluation_run(given: dict[str, Any]) -> str:
    """`runs/20261121-101500-quickstart on its held-out prompts`."""
    return f"{given['policy']} on {given.get('data') or given.get('config') or 'its held-out prompts'}"


@_from_parameters
def name_export(given: dict[str, Any]) -> str:
    """`export of runs/20261121-101500-quickstart`."""
    return f"export of {given['run']}"


@_from_parameters
def name_sweep(given: dict[str, Any]) -> str:
    """`beta_group_sync_tiny`."""
    return Path(given["sweep"]).stem


@_from_parameters
def name_resumed_sweep(given: dict[str, Any]) -> str:
    """`20261121-101500-beta_group_sync_tiny, resumed`."""
    return f"{Path(given['sweep_dir']).name}, resumed"


def tag_flow_run(run_path: Path) -> None:
    """Add what a list of runs is filtered by to the tags of this flow run: preset, model, data and worker."""
    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    labels = {f"{key}:{config.tracking.labels[key]}" for key in ("sweep", "arm") if key in config.tracking.labels}
    _add_tags({f"preset:{run_dir.read_origin().preset}", f"model:{config.model.source}", f"data:{config.data.source}", *labels})


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
