"""The base of every section, and which values it can hold: those that RUN_DIR's config.json gives back as they were."""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

MAX_LEVELS = 20
LARGEST_INT = 2**63 - 1
"""What JSON readers, torch and NumPy can all hold."""
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
"""Of float32, in which weights and losses are computed."""


def _check_plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return free values after refusing what JSON cannot hold: dates, bytes, NaN, keys that are no text, nesting without end.

    Raises:
        PydanticCustomError: names where the value is, and what is wrong with it.
    """
    _check(values, "", MAX_LEVELS)
    return values


def _check(value: Any, path: str, levels: int) -> None:
    fault = _fault(value, levels)
    if fault is not None:
        raise PydanticCustomError("not_plain", "{fault}", {"fault": f"{path[:60] or 'it'} {fault}"})
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        _check(item, f"{path}.{key}".lstrip("."), levels - 1)


def _fault(value: Any, levels: int) -> str | None:
    """Return what keeps a value, its parts left aside, out of a JSON file."""
    fault = None
    if isinstance(value, str):
        fault = None if _is_text(value) else "is no valid Unicode text"
    elif isinstance(value, int):  # bool is one
        fault = None if abs(value) <= LARGEST_INT else "is an integer of more than 64 bits"
    elif isinstance(value, float):
        fault = None if math.isfinite(value) else f"is {value}, not a finite number"
    elif isinstance(value, dict | list | tuple):
        fault = None if levels else f"is nested too deeply (more than {MAX_LEVELS} levels)"
        if isinstance(value, dict) and not all(isinstance(key, str) and _is_text(key) for key in value):
            fault = "has a key that is no text"
    elif value is not None:
        fault = f"is a {type(value).__name__}; put it in quotes, or use numbers, text, lists and sections"
    return fault


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


PlainValues = Annotated[dict[str, Any], AfterValidator(_check_plain)]
"""Passed on as they are, to somebody else's function."""


class Section(BaseModel):
    """Base of all sections: frozen, strict about keys, described by the text under each field."""

    # Inputs are hidden: pydantic cuts a long one and so shows a part of a password; `explain` shows it without.
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        """Refuse numbers that tensors cannot hold: arithmetic would overflow. Pydantic adds the key and the value."""
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and abs(number) > LARGEST_INT:
                raise PydanticCustomError("int_too_large", "input should be an integer of at most 64 bits")
            if isinstance(number, float) and abs(number) > LARGEST_FLOAT:
                raise PydanticCustomError("float_too_large", "input should be a number that float32 can hold, at most 3.4e38")
        return value
