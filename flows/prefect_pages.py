"""What Prefect's pages show of a flow: its form, and the names and tags of its runs.

The form is made of the signature of the flow's object, which is changed here; calls use that of its function. A field that is
left empty stays out of the run's parameters: in a form made of `beta: float | None = None` it would show `Property is type
"None"`, and send null. The server checks the types before it makes a run. What the fields mean is in the flows' docstrings,
where Prefect reads it. None means: as the preset says. Runs are called and tagged, once their folder is open, by what they
differ in.
"""

import inspect
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, TypeVar, get_args

from prefect import Flow, get_client
from prefect.runtime import flow_run
from pydantic import Field, WithJsonSchema
from pydantic_core import MISSING

from grpo_core.config import run_name
from grpo_core.config.origin import SWEEPS, preset_names
from grpo_core.run.folder import RunDir
from grpo_core.sweep.folder import StoredSweep
from grpo_core.text import redact_uri, visible
from tasks.process.context import worker_tags
from tasks.process.prefect_outage import prefect_may_be_away

F = TypeVar("F", bound=Flow[..., Any])


def form(flow: F) -> F:
    """Arrange the form of a flow."""
    signature = inspect.signature(flow.fn, eval_str=True)
    fields = [_field(parameter) for parameter in signature.parameters.values()]
    flow.__signature__ = signature.replace(parameters=fields)  # type: ignore[attr-defined]
    return flow


def _field(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.default is not None:
        return parameter
    kind = next(kind for kind in get_args(parameter.annotation) if kind is not NoneType)
    return parameter.replace(annotation=kind, default=MISSING)


# The text comes first: Prefect's older page has the cursor jump to the first field of a type.
_PATH = {"title": "Path of a file", "type": "string", "minLength": 1}

Name = Annotated[str, Field(min_length=1)]
Config = Annotated[str, WithJsonSchema({"anyOf": [_PATH, {"title": "Preset", "type": "string", "enum": preset_names()}]})]
SweepFile = Annotated[
    str,
    WithJsonSchema({"anyOf": [_PATH, {"title": "File in configs/sweeps/", "type": "string", "enum": preset_names(SWEEPS)}]}),
]
NonNegativeFloat = Annotated[float, Field(ge=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
Overrides = dict[str, Any]
NO_OVERRIDES: Final[Overrides] = {}
"""A default that the form shows as `{}`, ready to be filled; nothing writes to it."""
NAME_KEY = {"name": "tracking.run_name"}
"""The parameter `name` of flows that make a run, and its key."""


def show_run(run_path: Path, *, is_new: bool) -> None:
    """Give this flow run the name of its run (`β 0 · G 8 · sync 10 · s0`), and tags by which lists are filtered."""
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
