"""The base of every section, and which values it can hold: those that RUN_DIR's config.json gives back as they were.

An address with a password is none of them: every key is stored in files, in MLflow and in Prefect's database.
"""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

from grpo_core.errors import ConfigError, name_of, shown
from grpo_core.redaction import has_credentials

MAX_LEVELS = 20
LARGEST_INT = 2**63 - 1
"""What JSON readers, torch and NumPy can all hold."""
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
"""Of float32, in which weights and losses are computed."""


def _check_plain(value: Any, path: str = "", levels: int = MAX_LEVELS) -> Any:
    """Return free values after refusing what JSON cannot hold: dates, bytes, NaN, keys that are no text, nesting without end.

    Raises:
        PydanticCustomError: names where the value is, and what is wrong with it.
    """
    fault = _fault(value, levels)
    if fault is not None:
        raise PydanticCustomError("not_plain", "{fault}", {"fault": f"{path[:60] or 'it'} {fault}"})
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        _check_plain(item, f"{path}.{key}".lstrip("."), levels - 1)
    return value


def _fault(value: Any, levels: int) -> str | None:
    """Return what keeps a value, its parts left aside, out of a JSON file."""
    number = value if isinstance(value, float) else 0.0
    other = f"is a {type(value).__name__}; put it in quotes, or use numbers, text, lists and sections"
    faults = {
        "is no valid Unicode text": isinstance(value, str) and not _is_text(value),
        "is an integer of more than 64 bits": isinstance(value, int) and abs(value) > LARGEST_INT,
        f"is {number}, not a finite number": not math.isfinite(number),
        "has a key that is no text": isinstance(value, dict)
        and not all(isinstance(key, str) and _is_text(key) for key in value),
        f"is nested too deeply (more than {MAX_LEVELS} levels)": isinstance(value, dict | list | tuple) and not levels,
        other: not isinstance(value, str | int | float | dict | list | tuple | None),
    }
    return next((fault for fault, holds in faults.items() if holds), None)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not re.search(r"[\ud800-\udfff]", value)  # half of a surrogate pair is no character


PlainValues = Annotated[dict[str, Any], AfterValidator(_check_plain)]
"""Passed on as they are, to somebody else's function."""


WHERE_INSTEAD = (
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, carry it to a server; the address of a "
    "database goes with its password into MLFLOW_TRACKING_URI"
)
STORED = "holds a password or a token, and a configuration is stored"


def _no_credentials(instead: str) -> Callable[[str], str]:
    """Return a validator that refuses an address with a password or a token.

    Args:
        instead: where such a password belongs.
    """

    def check(value: str) -> str:
        if has_credentials(value):
            raise PydanticCustomError(
                "credentials",
                f"{STORED}; {instead}; where it was a parameter of a flow run, Prefect's database holds it now: change it",
            )
        return value

    return check


Source = Annotated[str, AfterValidator(_no_credentials("HF_TOKEN carries the token of the hub"))]
TrackingUri = Annotated[str, AfterValidator(_no_credentials(WHERE_INSTEAD))]
StudyUrl = Annotated[str, AfterValidator(_no_credentials("the whole address goes into GRPO_STUDY_URL"))]


def refuse_credentials(key: str, value: Any) -> None:
    """Refuse an address with a password or a token anywhere in a value, before it is handed to a flow.

    Raises:
        ConfigError: names the key and where the password belongs.
    """
    for item in _texts(value):
        if "://" in item.split(maxsplit=1)[0] and has_credentials(item):
            raise ConfigError(f"{name_of(key)}: {STORED}; {WHERE_INSTEAD}; got {shown(item)}")


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value.strip() else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for item in items for text in _texts(item)]


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
