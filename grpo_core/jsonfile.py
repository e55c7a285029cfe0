"""JSON files that a run keeps about itself: read back as what they were, or refused with what is wrong."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

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


def build(kind: type[T], fields: Any) -> T:
    """Return a dataclass of text and counts from its fields: each has to be there, and to be what it says.

    Raises:
        ValueError: names the first field that is missing, unknown, or of another type.
    """
    types = get_type_hints(kind)
    if not isinstance(fields, Mapping):
        raise ValueError(f"expected an object, got a {type(fields).__name__}")
    unlike = sorted(fields.keys() ^ types.keys())
    if unlike:
        name = unlike[0]
        raise ValueError(f"{name[:60]!r} is {'missing' if name in types else 'unknown'}")
    for name, wanted in types.items():
        _check(name, fields[name], wanted)
    return kind(**fields)


def _check(name: str, value: object, wanted: type) -> None:
    if wanted is str:
        if not isinstance(value, str):
            raise ValueError(f"{name!r} is not text")
        value.encode()  # half a surrogate pair raises UnicodeEncodeError, which is a ValueError
    elif type(value) is not int or not 0 <= value < 2**63:  # bool is an int to Python; no file of ours means one by a count
        raise ValueError(f"{name!r} is not a count")
