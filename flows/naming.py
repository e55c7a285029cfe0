"""What flow runs are called and tagged in Prefect's UI, once their folder is open: what they differ in."""

from pathlib import Path
from typing import Any

from prefect import get_client
from prefect.runtime import flow_run

from grpo_core.config import run_name
from grpo_core.run.folder import RunDir
from grpo_core.sweep.folder import StoredSweep
from grpo_core.text import redact_uri, visible
from tasks.process.context import worker_tags
from tasks.process.prefect_outage import prefect_may_be_away


def show_run(run_path: Path, *, is_new: bool) -> None:
    """Give this flow run the name of its run (`β=0 G=8 sync=10 seed=0 quickstart`), and tags by which lists are filtered."""
    run_dir = RunDir(run_path)
    config, origin = run_dir.read_config(), run_dir.read_origin()
    labels = {f"{key}:{config.tracking.labels[key]}" for key in ("sweep", "arm") if key in config.tracking.labels}
    tags = {f"preset:{origin.preset}", f"model:{config.model.source}", f"data:{config.data.source}", *labels}
    name = run_name(config, origin)
    _update(tags, name=_shown(name if is_new else f"{name}, resumed"))


def tag_sweep(stored: StoredSweep) -> None:
    """Add a sweep's id and its worker to the tags of this flow run; its runs have the same tag."""
    _update({f"sweep:{stored.id}"})


def _shown(text: str) -> str:
    """Return a text as Prefect's pages and commands show it: one line in which nothing acts, without passwords."""
    return visible(redact_uri(text))


def _update(tags: set[str], **changes: Any) -> None:
    with prefect_may_be_away(), get_client(sync_client=True) as client:
        known = client.read_flow_run(flow_run.id)
        client.update_flow_run(known.id, tags={*known.tags, *map(_shown, tags), *worker_tags()}, **changes)
