"""Read a source file: YAML, JSON or TOML into plain values, `${key}` references resolved, nested sections made flat."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config.loading import read_values
from grpo_core.errors import ConfigError
from grpo_core.interop.yaml11 import parse_yaml11

WHOLE = re.compile(r"\$\{([\w.-]+)\}")
ANY_REFERENCE = re.compile(r"\$\{[^{}]*\}")


@dataclass(frozen=True)
class Unresolved:
    """A value with a reference that the file itself does not answer."""

    text: str
    reason: str

    def __repr__(self) -> str:
        """Return the text as the file has it."""
        return repr(self.text)


def read_values_of(path: Path) -> dict[str, Any]:
    """Return the plain values of a YAML, JSON or TOML file.

    Raises:
        ConfigError: it cannot be read, is none of these, or holds no keys.
    """
    values = read_values(path, _parse_toml if path.suffix == ".toml" else _parse, "YAML, JSON or TOML", "keys with values")
    return {str(key): value for key, value in values.items()}


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    return str(read_values(path, lambda text: {"": text}, "YAML, JSON or shell")[""])


def _parse(text: str) -> Any:
    # As TRL and ROLL read it, with PyYAML: YAML 1.1, where `fp16: yes` is true and 010 is 8.
    if not text.lstrip().startswith("{"):
        return parse_yaml11(text)
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ConfigError("is nested too deeply") from error
    except ValueError as error:
        # `{a: 1}` is YAML in flow style; where it is not even that, JSON's complaint is the helpful one.
        try:
            return parse_yaml11(text)
        except ConfigError:
            raise ConfigError(f"is not valid JSON: {error}") from error


def _parse_toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not valid TOML: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ConfigError(f"{key} is given twice")
        values[key] = value
    return values


def flatten_sections(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {key.path: value} of every leaf; lists and empty sections are leaves.

    >>> flatten_sections({"a": {"b": [1], "c": {}}})
    {'a.b': [1], 'a.c': {}}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        flat.update(flatten_sections(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value})
    return flat


def resolve_references(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with every `${key.path}` replaced by what it names in the same file.

    What cannot be resolved (another file's key, an OmegaConf resolver, a circle) becomes an `Unresolved`.

    >>> resolve_references({"a": 4, "b": {"c": "${a}", "d": "n-${a}", "e": "${x}"}})["b"]
    {'c': 4, 'd': 'n-4', 'e': '${x}'}
    """
    return {key: _resolve(value, values, ()) for key, value in values.items()}


def _resolve(value: Any, root: Mapping[str, Any], seen: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _resolve(item, root, seen) for key, item in value.items()}
    if isinstance(value, list):
        items = [_resolve(item, root, seen) for item in value]
        return next((item for item in items if isinstance(item, Unresolved)), items)
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = WHOLE.fullmatch(value)
    return _look_up(whole[1], value, root, seen) if whole else _fill_in(value, root, seen)


def _look_up(name: str, text: str, root: Mapping[str, Any], seen: tuple[str, ...]) -> Any:
    if name in seen:
        return Unresolved(text, f"{text} refers to itself")
    node: Any = root
    for part in name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return Unresolved(text, f"{text} is not defined in this file; write its value")
        node = node[part]
    return _resolve(node, root, (*seen, name))


def _fill_in(text: str, root: Mapping[str, Any], seen: tuple[str, ...]) -> Any:
    filled = text
    for reference in ANY_REFERENCE.findall(text):
        name = WHOLE.fullmatch(reference)
        value = _look_up(name[1], reference, root, seen) if name else None
        if value is None or isinstance(value, Unresolved | Mapping | list):
            return Unresolved(text, f"{reference} is not defined in this file; write its value")
        filled = filled.replace(reference, str(value))
    return filled if "${" not in filled else Unresolved(text, "a nested reference is not resolved; write its value")
