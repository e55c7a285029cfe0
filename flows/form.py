"""Prefect's form of a flow: a field that is left empty stays out of the run's parameters.

The form is made of the signature of the flow's object, which is changed here; calls use that of its function. In a form made of
`beta: float | None = None` the field would show `Property is type "None"`, and send null.
"""

import inspect
from types import NoneType
from typing import Any, TypeVar, get_args

from prefect import Flow
from pydantic_core import MISSING

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
