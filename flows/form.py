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

from grpo_core.config import load_config
from grpo_core.config.loading import KNOBS
from grpo_core.config.origin import named_settings
from grpo_core.config.presets import preset_names
from grpo_core.errors import GrpoError
from grpo_core.sweep.display import first_few, level_name

F = TypeVar("F", bound=Flow[..., Any])
MOST_NAMED = 4
"""Presets with the same value that a description names."""


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


def knob_values() -> dict[str, dict[str, Any]]:
    """Return the extras of the flat parameters: what each is in every preset."""
    values: dict[str, dict[str, list[str]]] = {knob: {} for knob in KNOBS}
    for preset in preset_names():
        try:
            flat = named_settings(load_config(preset))
        except GrpoError:  # a file of the user's: it is refused where it is used
            continue
        for knob, key in KNOBS.items():
            values[knob].setdefault(level_name(key, flat[key]), []).append(preset)
    return {knob: {"after": _left_empty(found)} for knob, found in values.items()}


def _left_empty(found: Mapping[str, list[str]]) -> str:
    texts = [f"{value} ({first_few(presets, MOST_NAMED)})" for value, presets in found.items()]
    return f"Left empty: the preset's value, {', '.join(texts)}." if texts else "Left empty: the preset's value."


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
