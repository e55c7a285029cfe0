"""JSON files that a run keeps about itself: written whole, and read back as what they were or refused with what is wrong."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from grpo_core.errors import name_of, shown
from grpo_core.machine.disk import write_private, write_whole

T = TypeVar("T")
STORED = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""Settings of a pydantic dataclass that is kept as JSON: nothing is converted, nothing unknown is taken."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
Norm = Annotated[float, Field(ge=0)]
FAULTS = {"missing": "is missing", "unexpected_keyword_argument": "is unknown"}
"""What pydantic's errors about fields are called here."""


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON.
    """
    return json.loads(path.read_bytes())


def jsonable(value: Any) -> Any:
    """Return a value as plain JSON values; arrays and NumPy scalars become lists and numbers, the rest text."""
    return json.loads(json.dumps(value, default=lambda item: item.tolist() if hasattr(item, "tolist") else str(item)))


def json_copy(value: Any) -> Any:
    """Return a copy of plain JSON values in which each list and object is a new one, however often it occurs in them."""
    if isinstance(value, Mapping):
        return {key: json_copy(item) for key, item in value.items()}
    return [json_copy(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """Write a JSON file: whoever reads it, also after a kill or a power failure, finds all of it or what was there before.

    Args:
        path: the file.
        value: what it is to hold.
        private: whether only its owner may read it.

    Raises:
        OSError: it cannot be written.
    """
    (write_private if private else write_whole)(path, json.dumps(value, indent=2) + "\n")


def append_json(path: Path, value: Any) -> None:
    """Append one JSON line, in the place of a last line that was torn; it is on disk when this returns.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(value).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[bytes]:
    """Return the whole lines of a file that `append_json` writes: none where there is no file, a torn last line is dropped.

    Raises:
        OSError: it cannot be read.
    """
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def build(kind: type[T], fields: Any) -> T:
    """Return what JSON fields hold as a `kind`: a pydantic dataclass with the settings STORED, or whatever pydantic checks.

    Raises:
        ValueError: names the first field that is missing, unknown, or of another type, and its value.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(fields))
    except ValidationError as error:
        fault = error.errors()[0]
        name, is_missing = ".".join(map(name_of, fault["loc"])), fault["type"] == "missing"
        what = FAULTS.get(fault["type"], fault["msg"].lower().removeprefix("value error, "))
        got = "" if is_missing else f", got {shown(fault['input'])}"
        raise ValueError(f"{name or 'it'}: {what}{got}") from error
