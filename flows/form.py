"""Prefect's form of a flow: the types of its fields; one that is left empty stays out of the run's parameters.

The form is made of the signature of the flow's object, which is changed here; calls use that of its function. In a form made of
`beta: float | None = None` the field would show `Property is type "None"`, and send null. The server checks the types before it
makes a run. What the fields mean is in the flows' docstrings, where Prefect reads it. None means: as the preset says.
"""

import inspect
from types import NoneType
from typing import Annotated, Any, Final, TypeVar, get_args

from prefect import Flow
from pydantic import Field, WithJsonSchema
from pydantic_core import MISSING

from grpo_core.config.origin import SWEEPS, preset_names

F = TypeVar("F", bound=Flow[..., Any])


def form(flow: F) -> F:
    """Arrange the form of a flow."""
    signature = inspect.signature(flow.fn, eval_str=True)
    fields = [_field(parameter) for parameter in signature.parameters.values()]
    flow.__signature__ = signature.replace(parameters=fields)  # type: ignore[attr-defined]
    return flow


def _field(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as the form has it."""
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
