"""Type checks of source values: each returns the value, or raises ValueError with what was expected."""

import math
from collections.abc import Callable
from typing import Any

Reader = Callable[[Any], Any]
LARGEST = 1e15
"""Beyond it, no count or factor means anything, and arithmetic would overflow."""


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value) and abs(value) <= LARGEST


def anything(value: Any) -> Any:
    """Return any value."""
    return value


def number(value: Any) -> float:
    """Return a number.

    Raises:
        ValueError: it is none.
    """
    if not _is_number(value):
        raise ValueError("expected a number")
    return value  # type: ignore[no-any-return]  # _is_number has checked it


def whole(value: Any) -> int:
    """Return a whole number, also one that is written as 8.0.

    Raises:
        ValueError: it is none.
    """
    if not _is_number(value) or value != value // 1:
        raise ValueError("expected a whole number")
    return int(value)


def positive(value: Any) -> int:
    """Return a whole number of at least 1.

    Raises:
        ValueError: it is none.
    """
    if not _is_number(value) or value != value // 1 or value < 1:
        raise ValueError("expected a whole number of at least 1")
    return int(value)


def flag(value: Any) -> bool:
    """Return true or false.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def text(value: Any) -> str:
    """Return text.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError("expected text")
    return value


def texts(value: Any) -> list[str]:
    """Return a list of texts; one text is a list of one.

    Raises:
        ValueError: it is neither.
    """
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError("expected text or a list of texts")
    return items


def numbers(value: Any) -> list[float]:
    """Return a list of numbers.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, list):
        raise ValueError("expected a list of numbers")
    try:
        return [number(item) for item in value]
    except ValueError as error:
        raise ValueError("expected a list of numbers") from error


def optional(read: Reader) -> Reader:
    """Return a reader that also takes null."""

    def read_optional(value: Any) -> Any:
        if value is None:
            return None
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(f"{error} or null") from error

    return read_optional


def choice(*allowed: Any) -> Reader:
    """Return a reader that takes one of the values."""

    def read_choice(value: Any) -> Any:
        # type(): 0 and 1 are not false and true here.
        if not any(value == item and type(value) is type(item) for item in allowed):
            raise ValueError(f"expected one of {', '.join('null' if item is None else str(item) for item in allowed)}")
        return value

    return read_choice
