"""JSON files that a run keeps about itself: written whole, and read back as what they were or refused with what is wrong."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from grpo_core.machine.private import write_private

T = TypeVar("T")


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON, or nested too deeply.
    """
    return parse_json(path.read_bytes())


def parse_json(content: bytes) -> Any:
    """Return what a JSON text holds.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file: whoever reads it, also after a kill or a power failure, finds all of it or what was there before.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_private_json(path: Path, value: Any) -> None:
    """Write a JSON file as `write_json` does, readable by its owner alone.

    Raises:
        OSError: it cannot be written.
    """
    write_private(path, json.dumps(value, indent=2) + "\n")


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


def build(kind: type[T], fields: Any) -> T:
    """Return a dataclass of text, counts and figures from its fields: each is what it says, and there unless it has a default.

    Raises:
        ValueError: names the first field that is missing, unknown, or of another type.
    """
    types = get_type_hints(kind)
    if not isinstance(fields, Mapping):
        raise ValueError(f"expected an object, got a {type(fields).__name__}")
    optional = {field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING}  # type: ignore[arg-type]
    unlike = sorted((fields.keys() ^ types.keys()) - (optional - fields.keys()))
    if unlike:
        name = unlike[0]
        raise ValueError(f"{name[:60]!r} is {'missing' if name in types else 'unknown'}")
    for name in fields:
        _check(name, fields[name], types[name])
    return kind(**fields)


def _check(name: str, value: object, wanted: Any) -> None:
    either = get_args(wanted)
    if either:
        if value is not None:
            _check(name, value, next(kind for kind in either if kind is not NoneType))
    elif wanted is float:
        if type(value) is not float or not math.isfinite(value):
            raise ValueError(f"{name!r} is not a figure")
    elif wanted is str:
        if not isinstance(value, str):
            raise ValueError(f"{name!r} is not text")
        value.encode()  # half a surrogate pair raises UnicodeEncodeError, which is a ValueError
    elif type(value) is not int or not 0 <= value < 2**63:  # bool is an int to Python; no file of ours means one by a count
        raise ValueError(f"{name!r} is not a count")
