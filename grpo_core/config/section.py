"""The base of every section, and which values it can hold: those that RUN_DIR's config.json gives back as they were.

An address with a password is none of them: every key is stored in files, in MLflow and in Prefect's database.
"""

import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from grpo_core.errors import ConfigError, name_of, shown
from grpo_core.redaction import has_credentials

MAX_LEVELS = 20
LARGEST_INT = 2**63 - 1
"""What JSON readers, torch and NumPy can all hold."""
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
"""Of float32, in which weights and losses are computed."""
SMALLEST_FLOAT = 2.0**-126
"""Above 0, of float32 at its full precision."""


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


MOST_STEPS = 1_000_000
"""Of a run; every period in steps has the same bound."""
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
MOST_TOKENS = 2**24
"""Of a prompt or a completion; the longest contexts of models are of 10 million tokens."""
MOST_ROWS = 100_000_000
"""Of a data set, or of an evaluation."""
MOST_TEXT = 4096
"""Characters of a name, a path or an address."""


def _check_text(value: str) -> str:
    """Return a name, path or address that is not empty, has no blanks around it and no characters that are not seen."""
    faults = {
        "input should not be empty": not value.strip(),
        "input should not begin or end with a blank": value != value.strip(),
        "input should hold no line breaks or control characters": not value.isprintable(),
        f"input should have at most {MOST_TEXT} characters": len(value) > MOST_TEXT,
    }
    for fault, holds in faults.items():
        if holds:
            raise PydanticCustomError("not_a_name", "{fault}", {"fault": fault})
    return value


Text = Annotated[str, AfterValidator(_check_text)]


def _check_title(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("empty", "input should not be empty")
    return value


Title = Annotated[str, Field(max_length=500), AfterValidator(_check_title)]
"""What people name something; whatever it holds, it is shown as text."""
Column = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
"""Name of a column, as the data has it: blanks around it belong to it."""
Source = Annotated[Text, AfterValidator(_no_credentials("HF_TOKEN carries the token of the hub"))]


def _of_scheme(*schemes: str) -> Callable[[str], str]:
    """Return a validator that refuses an address (`scheme://...`, of a database also `scheme+driver://...`) of another kind."""

    def check(value: str) -> str:
        scheme, separator, _ = value.partition("://")
        if separator and scheme.partition("+")[0].lower() not in schemes:
            fault = f"input should begin with {', '.join(f'{scheme}://' for scheme in schemes)} or be a path"
            raise PydanticCustomError("unknown_scheme", "{fault}", {"fault": fault})
        return value

    return check


def refuse_off_by_number(value: Any) -> Any:
    """Return a value after refusing 0 and -1, by which other systems switch off what null switches off here."""
    if type(value) is int and value in (0, -1):
        raise PydanticCustomError("off_is_null", "input should be null to switch it off, or at least 1")
    return value


DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
TrackingUri = Annotated[
    Text, AfterValidator(_no_credentials(WHERE_INSTEAD)), AfterValidator(_of_scheme("http", "https", "file", *DATABASES))
]
"""Without `://` it is a path, or the name of a service that MLflow knows (`databricks`)."""
StudyUrl = Annotated[
    Text, AfterValidator(_no_credentials("the whole address goes into GRPO_STUDY_URL")), AfterValidator(_of_scheme(*DATABASES))
]


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

    @field_validator("*", mode="before")
    @classmethod
    def _is_meant(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what pydantic would convert: `yes` and 1 to true, true and "12" to numbers. Whoever wrote it meant another."""
        kinds = _kinds_of(cls, info.field_name or "")
        for item in _scalars(value):
            if (fault := _conversion(item, kinds)) is not None:
                raise PydanticCustomError("converted", "{fault}", {"fault": fault})
        return value

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        """Refuse numbers that tensors cannot hold: they would overflow, or become 0. Pydantic adds the key and the value."""
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and abs(number) > LARGEST_INT:
                raise PydanticCustomError("int_too_large", "input should be an integer of at most 64 bits")
            if isinstance(number, float) and abs(number) > LARGEST_FLOAT:
                raise PydanticCustomError("float_too_large", "input should be a number that float32 can hold, at most 3.4e38")
            if isinstance(number, float) and 0 < abs(number) < SMALLEST_FLOAT:
                raise PydanticCustomError("float_too_small", "input should be 0, or at least 1.2e-38, as float32 can hold it")
        return value


@cache
def _kinds_of(section: type[BaseModel], name: str) -> frozenset[Any]:
    """Return the types that the parts of a field may have; a choice of texts counts as text."""
    return frozenset(_leaves(section.model_fields[name].annotation))


def _leaves(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from (type(choice) for choice in get_args(annotation))
    elif get_args(annotation):
        for part in get_args(annotation):
            yield from _leaves(part)
    else:
        yield annotation


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _scalars(item)
    else:
        yield value


YES_OR_NO = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
"""What YAML 1.1 reads as a truth value, in part, and how YAML 1.2 writes it."""


def _conversion(value: Any, kinds: frozenset[Any]) -> str | None:
    """Return why a value is not of any of some types, although it could be converted to one; None where it need not be."""
    wants_number = bool(kinds & {int, float})
    if Any in kinds or type(value) in kinds or type(value) not in (bool, int, str):
        return None
    if bool in kinds and not wants_number:
        written = YES_OR_NO.get(value.lower()) if isinstance(value, str) else None
        hint = f" (`{value}` is a text in YAML 1.2: write {written})" if written else ""
        return f"input should be true or false{hint}"
    if wants_number and isinstance(value, bool | str):
        number = "a valid number" if float in kinds else "a valid integer"
        return f"input should be {number}, not {'true or false' if isinstance(value, bool) else 'a text'}"
    return None
