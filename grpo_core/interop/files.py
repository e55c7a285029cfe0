"""Read a source file: YAML 1.1, JSON or TOML into plain values, nested sections made flat, `${key}` references resolved."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpo_core.errors import ConfigError, raised_as

MOST_ALIASES = 20
"""Of a YAML file; twice as many could stand for millions of values."""
FAULTS = (yaml.YAMLError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What the parsers raise: PyYAML lets errors of Python's types out, as for a date such as 2026-13-45."""
REFERENCE = re.compile(r"\$\{([\w.-]+)\}")


@dataclass(frozen=True)
class Unresolved:
    """A value that the file itself does not answer: a reference, or what only a shell would know."""

    text: str
    reason: str


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    with raised_as(ConfigError, f"config {path}: cannot be read as text ({{cause}})", OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8-sig")


def read_values(path: Path) -> dict[str, Any]:
    """Return the plain values of a file of keys, as those systems read it: YAML by PyYAML, where `fp16: yes` is true.

    Raises:
        ConfigError: it cannot be read, is neither YAML nor JSON nor TOML, or holds no keys.
    """
    text, kind = read_text(path), path.suffix[1:].upper()
    with raised_as(
        ConfigError, f"config {path}: is not valid {kind if kind in ('JSON', 'TOML') else 'YAML'}: {{cause}}", *FAULTS
    ):
        if kind == "JSON":
            values = json.loads(text)
        elif kind == "TOML":
            values = tomllib.loads(text)
        elif sum(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)) > MOST_ALIASES:
            raise ValueError(f"more than {MOST_ALIASES} aliases")
        else:
            values = yaml.safe_load(text)
        json.dumps(values, default=str, skipkeys=True)  # refuses what contains itself, or is nested without end
    if not values:
        raise ConfigError(f"config {path}: is empty; give a file with keys and values")
    if not isinstance(values, dict):
        raise ConfigError(f"config {path}: expected keys with values, got a {type(values).__name__}")
    return {str(key): value for key, value in values.items()}


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


def resolve_references(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with every `${key.path}` replaced by the value of that key in the same file.

    What cannot be resolved (another file's key, an OmegaConf resolver, a circle) becomes an `Unresolved`.

    >>> str(resolve_references({"a": 4, "b.c": "${a}", "b.d": "n-${b.c}", "b.e": "${x}"})["b.d"])
    'n-4'
    """
    return {key: _resolve(value, flat, 0) for key, value in flat.items()}


def _resolve(value: Any, flat: Mapping[str, Any], depth: int) -> Any:
    if isinstance(value, list):
        items = [_resolve(item, flat, depth) for item in value]
        return next((item for item in items if isinstance(item, Unresolved)), items)
    if not isinstance(value, str) or "${" not in value:
        return value
    unresolved = Unresolved(value, f"{value} is not defined in this file; write its value")
    names = REFERENCE.findall(value)
    if depth == 3 or not flat.keys() >= set(names) or "${" in REFERENCE.sub("", value):
        return unresolved
    found = {name: _resolve(flat[name], flat, depth + 1) for name in names}
    if any(isinstance(item, Unresolved) for item in found.values()):
        return unresolved
    return found[names[0]] if REFERENCE.fullmatch(value) else REFERENCE.sub(lambda match: str(found[match[1]]), value)
