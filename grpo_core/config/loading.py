"""Read a configuration: YAML by safe loader, then `key.path=value` overrides, then validation with readable messages."""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from grpo_core.config.consistency import check_consistency
from grpo_core.config.presets import find_config
from grpo_core.config.schema import RunConfig
from grpo_core.errors import ConfigError


def load_config(path: Path | str | None = None, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the validated configuration of a YAML file or preset (None = all defaults), {key.path: value} overrides last.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or given twice, a value is out of range, or keys contradict.
    """
    values = {} if path is None else _read_yaml(find_config(path))
    return validate_config(apply_overrides(values, overrides or {}))


def validate_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of nested plain values.

    Raises:
        ConfigError: as `load_config`.
    """
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(detail) for detail in error.errors())) from error
    check_consistency(config)
    return config


def apply_overrides(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with each key path set; a number in a path indexes a list (`rewards.0.weight`).

    Raises:
        ConfigError: a path passes through something that has no keys, or lies inside another one.
    """
    for key in overrides:
        outer = next((other for other in overrides if key.startswith(f"{other}.")), None)
        if outer is not None:
            raise ConfigError(f"{key}: given twice, by itself and as a part of {outer}; give it once")
    result: dict[str, Any] = _deep_copy(values)
    for key, value in overrides.items():
        _set(result, key, value)
    return result


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Return {key.path: value} of `key.path=value` texts.

    Values are read as YAML, so `null`, `0.1`, `[1, 4]` mean what they mean in a file.

    Raises:
        ConfigError: a text is malformed, or a key is given twice.

    >>> parse_overrides(["loss.beta=1e-3", "reference.sync_steps=null"])
    {'loss.beta': 0.001, 'reference.sync_steps': None}
    """
    overrides: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"override {text!r}: expected key.path=value, for example loss.beta=0.1")
        if key.strip() in overrides:
            raise ConfigError(f"{key.strip()}: given twice; give it once")
        try:
            overrides[key.strip()] = _parse_yaml(value) if value else value
        except ConfigError as error:
            raise ConfigError(f"override {text!r}: the value {error}") from error
    return overrides


class _Loader(yaml.SafeLoader):
    """The safe loader, with two traps closed: a key given twice is refused, and 1e-6 (no dot) is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node, after refusing keys that are given twice."""
        seen: list[Any] = []
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.append(key.value)
        return super().construct_mapping(node, deep=deep)


_SCIENTIFIC = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _SCIENTIFIC, list("-+.0123456789"))


def _parse_yaml(text: str) -> Any:
    """Return the plain values of a YAML text.

    Raises:
        ConfigError: it is not valid YAML; the message says where.
    """
    try:
        return _deep_copy(yaml.load(text, Loader=_Loader))
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2026-13-45
        raise ConfigError(f"is not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError("is nested too deeply") from error


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"config {path}: cannot be read ({error.strerror}); give the path of a YAML file{_near_file(path)}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config {path}: is not UTF-8 text") from error
    try:
        values = _parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"config {path}: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"config {path}: expected sections such as `loss:`, got a {type(values).__name__}")
    return values


def _near_file(path: Path) -> str:
    folder = path.parent
    names = [file.name for file in folder.glob("*.yaml")] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {folder / close[0]}?" if close else ""


def _deep_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep_copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_deep_copy(item) for item in value]
    return value


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node: Any = values
    for parent in parents:
        node = _descend(node, parent, key)
    if isinstance(node, list):
        node[_index(node, last, key)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"{key}: {'.'.join(parents)} is a value, not a section")


def _descend(node: Any, part: str, key: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, key)]
    if not isinstance(node, dict):
        raise ConfigError(f"{key}: {part!r} lies below a value, not a section")
    if node.get(part) is None:
        node[part] = {}
    return node[part]


def _index(items: list[Any], part: str, key: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise ConfigError(f"{key}: {part!r} is not an index of a list of {len(items)} (the file's, or set the list whole)")
    return int(part)


def _explain(detail: ErrorDetails) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"{key}: unknown key{_near_key(key)}"
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    shown = repr(detail["input"])
    value = "" if detail["type"] == "missing" else f", got {shown if len(shown) <= 80 else shown[:77] + '...'}"
    return f"{key or 'config'}: {message}{value}"


def _near_key(key: str) -> str:
    """Name the nearest known key: first among whole paths, then among last parts."""
    known = sorted(known_keys())
    generic = ".".join("*" if part.isdigit() else part for part in key.split("."))
    close = difflib.get_close_matches(generic, known, n=1, cutoff=0.75)
    if not close:
        last = generic.rsplit(".", 1)[-1]
        by_last = {name.rsplit(".", 1)[-1]: name for name in known}
        close = [by_last[name] for name in difflib.get_close_matches(last, by_last, n=1, cutoff=0.6)]
    section = generic.rpartition(".")[0]
    siblings = [name.rsplit(".", 1)[-1] for name in known if name.rpartition(".")[0] == section]
    hint = f"; did you mean {close[0].replace('*', '0')}?" if close else ""
    return hint + (f" (keys here: {', '.join(siblings)})" if siblings else "")


def known_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> set[str]:
    """Return every key path, with `*` for a list index."""
    keys: set[str] = set()
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        keys.add(path)
        annotation: Any = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys |= known_keys(annotation, f"{path}.")
        for item in get_args(annotation):
            if isinstance(item, type) and issubclass(item, BaseModel):
                keys |= known_keys(item, f"{path}.*.")
    return keys
