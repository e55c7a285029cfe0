"""Prefect's form of a flow: presets are choices, and a field that is left empty stays out of the run's parameters.

The form is made of the signature of the flow's object, which is changed here; calls use that of its function. In a form made of
`beta: float | None = None` the field would show `Property is type "None"`, and send null.
"""

import inspect
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

from prefect import Flow
from pydantic import Field
from pydantic_core import MISSING

F = TypeVar("F", bound=Flow[..., Any])


def form(**extras: Mapping[str, Any]) -> Callable[[F], F]:
    """Return a decorator of a flow that arranges its form.

    Args:
        extras: by parameter, keys of its JSON schema. One with `anyOf` takes the place of the parameter's own type; `after` is
            text that follows its description.
    """

    def arranged(flow: F) -> F:
        signature = inspect.signature(flow.fn, eval_str=True)
        documented = inspect.getdoc(flow.fn) or ""
        fields = [_field(parameter, extras.get(name, {}), documented) for name, parameter in signature.parameters.items()]
        flow.__signature__ = signature.replace(parameters=fields)  # type: ignore[attr-defined]
        return flow

    return arranged


def name_or_path(names: list[str], title: str) -> dict[str, Any]:
    """Return the extras of a field that takes one of some names, or the path of a file.

    The text comes first: Prefect's older page has the cursor jump to the first field of a type.
    """
    path = {"title": "Path of a file", "type": "string", "minLength": 1}
    return {"anyOf": [path, {"title": title, "type": "string", "enum": names}] if names else [path]}


def _field(parameter: inspect.Parameter, extras: Mapping[str, Any], documented: str) -> inspect.Parameter:
    """Return a parameter as the form has it."""
    extra = {key: value for key, value in extras.items() if key != "after"}
    if "after" in extras:
        extra["description"] = f"{_description(parameter.name, documented)} {extras['after']}"
    kind = Any if "anyOf" in extra else _without_none(parameter.annotation)
    default = MISSING if parameter.default is None else parameter.default
    return parameter.replace(annotation=Annotated[kind, Field(json_schema_extra=extra)], default=default)


def _without_none(annotation: Any) -> Any:
    kinds = get_args(annotation)
    return next(kind for kind in kinds if kind is not NoneType) if NoneType in kinds else annotation


def _description(name: str, documented: str) -> str:
    from prefect.utilities.callables import parameter_docstrings

    return parameter_docstrings(documented).get(name, "")
