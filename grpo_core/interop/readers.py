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


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == value // 1


def _is_count(value: Any) -> bool:
    return _is_whole(value) and value >= 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _reader(words: str, fits: Callable[[Any], bool], convert: Reader = lambda value: value) -> Reader:
    def read(value: Any) -> Any:
        if not fits(value):
            raise ValueError(f"expected {words}")
        return convert(value)

    return read


number = _reader("a number", _is_number)
whole = _reader("a whole number", _is_whole, int)
"""Also one that is written as 8.0."""
positive = _reader("a whole number of at least 1", _is_count, int)
flag = _reader("true or false", lambda value: isinstance(value, bool))
text = _reader("text", _is_text)
numbers = _reader("a list of numbers", _list_of(_is_number))
_several_texts = _reader("text or a list of texts", _list_of(_is_text))


def anything(value: Any) -> Any:
    """Return any value."""
    return value


def texts(value: Any) -> list[str]:
    """Return a list of texts; one text is a list of one."""
    return _several_texts([value] if isinstance(value, str) else value)  # type: ignore[no-any-return]  # checked there


def optional(read: Reader) -> Reader:
    """Return a reader that also takes null."""

    def read_optional(value: Any) -> Any:
        try:
            return None if value is None else read(value)
        except ValueError as error:
            raise ValueError(f"{error} or null") from error

    return read_optional


def choice(*allowed: Any) -> Reader:
    """Return a reader that takes one of the values; 0 and 1 are not false and true here."""
    names = ", ".join("null" if item is None else str(item) for item in allowed)
    return _reader(f"one of {names}", lambda value: any(value == item and type(value) is type(item) for item in allowed))
