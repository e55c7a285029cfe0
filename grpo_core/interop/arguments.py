"""Text as the argument parser of transformers reads it, for values from a command line and for text in its YAML files."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

Reader = Callable[[Any], Any]
"""Returns a value of the right type, or raises ValueError with what was expected."""

TRUTH = {
    **dict.fromkeys(("yes", "true", "t", "y", "1"), True),
    **dict.fromkeys(("no", "false", "f", "n", "0"), False),
}
"""As `transformers.hf_argparser.string_to_bool`, in any case of letters."""


def read_argument(read: Reader, value: Any) -> Any:
    """Return what a reader makes of a value, or of what its text stands for.

    Raises:
        ValueError: none of it is what the reader expects.

    >>> from grpo_core.interop.rules import flag, number
    >>> read_argument(number, "1e-5"), read_argument(flag, "False"), read_argument(flag, True)
    (1e-05, False, True)
    """
    if not isinstance(value, str | list):
        return read(value)
    for meaning in _meanings(value):
        with contextlib.suppress(ValueError):
            return read(meaning)
    return read(value)


def _meanings(value: Any) -> Iterator[Any]:
    """Yield what a value may stand for, the most special first."""
    if isinstance(value, list):
        yield value
        with contextlib.suppress(ValueError):
            yield [_number(item) if isinstance(item, str) else item for item in value]
        return
    with contextlib.suppress(ValueError):
        yield _number(value)
        yield [_number(value)]
    if value.lower() in TRUTH:
        yield TRUTH[value.lower()]
    if value.startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):
            yield json.loads(value)
    yield value


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
