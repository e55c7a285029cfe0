"""Read a configuration: YAML 1.2, then `key.path=value` overrides, then validation with readable messages.

The YAML is read by ruamel.yaml's safe loader, which refuses keys that are given twice. YAML 1.2 has no dates, no `1_000` and no
merge keys, which ruamel.yaml reads all the same. Aliases that would multiply a short text into millions of values, and nesting
without end, are refused before anything is copied. The knobs that are swept most are flat parameters of a flow, too: `beta`
instead of `overrides={"loss.beta": ...}`.
"""

import difflib
import io
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from grpo_core.config.consistency import check_consistency
from grpo_core.config.names import near
from grpo_core.config.schema import RunConfig
from grpo_core.config.section import refuse_credentials
from grpo_core.errors import ConfigError, listed, name_of, raised_as, shown
from grpo_core.machine.disk import json_copy
from grpo_core.text import visible

KNOBS = {
    "beta": "loss.beta",
    "group_size": "rollout.group_size",
    "ref_sync_steps": "reference.sync_steps",
    "seed": "training.seed",
}
"""Parameter name -> key path."""
IN_YAML = {
    "tuple_type": "input should be a list, such as [1, 2]",
    "dict_type": "input should be a section of keys, such as {key: value}",
    "model_type": "input should be a section of keys, such as {key: value}",
    "bool_type": "input should be true or false",
}
"""Errors about Python's types in the words of a YAML file."""


def validate_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of nested plain values.

    Raises:
        ConfigError: a key is unknown, a value is out of range, or keys contradict each other.
    """
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(listed(explain(error))) from error
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
            raise ConfigError(f"{name_of(key)}: given twice, by itself and as a part of {name_of(outer)}; give it once")
    result: dict[str, Any] = json_copy(values)
    for key, value in overrides.items():
        _set(result, key, value)
    return result


def as_overrides(given: Mapping[str, Any] | Iterable[str]) -> dict[str, Any]:
    """Return {key.path: value} of overrides in either form that Python callers may give.

    Raises:
        ConfigError: they have another form, or as `parse_overrides`.

    >>> as_overrides({"loss.beta": 0.1}) == as_overrides(["loss.beta=0.1"])
    True
    """
    texts = list(given)  # of a mapping its keys
    if isinstance(given, str) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"overrides: expected {{key.path: value}} or a list of key.path=value texts, got {shown(given)}")
    return dict(given) if isinstance(given, Mapping) else parse_overrides(texts)


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Return {key.path: value} of `key.path=value` texts.

    Values are read as YAML, so `null`, `0.1`, `[1, 4]` mean what they mean in a file.

    Raises:
        ConfigError: a text is malformed, a key is given twice, or a value is an address with a password.

    >>> parse_overrides(["loss.beta=1e-3", "reference.sync_steps=null"])
    {'loss.beta': 0.001, 'reference.sync_steps': None}
    """
    overrides: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"override {shown(text)}: expected key.path=value, for example loss.beta=0.1")
        if key.strip() in overrides:
            raise ConfigError(f"{name_of(key.strip())}: given twice; give it once")
        try:
            overrides[key.strip()] = parse_yaml(value) if value else value
        except ConfigError as error:
            raise ConfigError(f"override {shown(text)}: the value {error}") from error
        # Here: Prefect keeps what a flow is given, also if it is refused.
        refuse_credentials(key.strip(), overrides[key.strip()])
    return overrides


def merge_knobs(
    knobs: Mapping[str, Any], overrides: Mapping[str, Any], keys: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return `overrides` with the given knobs (those that are not None) added under their key paths (None = those of KNOBS).

    Raises:
        ConfigError: a knob's key is also among the overrides.

    >>> merge_knobs({"beta": 0.1, "seed": None, "ref_sync_steps": 0}, {"training.steps": 5})
    {'training.steps': 5, 'loss.beta': 0.1, 'reference.sync_steps': None}
    """
    merged = dict(overrides)
    for name, value in knobs.items():
        if value is None:
            continue
        key = (keys or KNOBS)[name]
        for other in overrides:
            if other == key or key.startswith(f"{other}."):
                raise ConfigError(
                    f"{key}: given twice, as the parameter {name} ({value}) and in overrides as {other} "
                    f"({overrides[other]}); give it once"
                )
        # A parameter that is left out is null already, so 0 means `reference.sync_steps: null`.
        merged[key] = None if name == "ref_sync_steps" and value == 0 else value
    return merged


def read_values(path: Path) -> dict[str, Any]:
    """Return the plain values of a YAML file of sections, not validated.

    Raises:
        ConfigError: it cannot be read, or holds something else or nothing.
    """
    nearest = near(path.name, [file.name for file in path.parent.glob("*.yaml")])
    unread = f"config {path}: cannot be read ({{cause}}); give the path of a YAML file{nearest}"
    with (
        raised_as(ConfigError, unread, OSError),
        raised_as(ConfigError, f"config {path}: is not UTF-8 text; give a YAML file", UnicodeDecodeError),
    ):
        text = path.read_text(encoding="utf-8-sig")
    try:
        values = parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"config {path}: {error}; give a YAML file") from error
    if not isinstance(values, dict | None):
        raise ConfigError(f"config {path}: expected sections such as `loss:`, got a {type(values).__name__}")
    if not values:
        raise ConfigError(f"config {path}: is empty; give a file with sections such as `loss:`")
    return values


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node: Any = values
    for part in parents:
        place = _place(node, part, key)
        if isinstance(node, dict) and node.get(place) is None:
            node[place] = {}
        node = node[place]
    node[_place(node, last, key)] = value


def _place(node: Any, part: str, key: str) -> str | int:
    """Return where in a section or a list a part of a key path is."""
    if isinstance(node, dict):
        return part
    if not isinstance(node, list):
        raise ConfigError(f"{name_of(key)}: {shown(part)} lies below what is a value, not a section")
    # Not isdigit(), which takes a superscript; no list has an index of more than nine digits.
    if not (part.isdecimal() and len(part) <= 9) or int(part) >= len(node):
        raise ConfigError(
            f"{name_of(key)}: {shown(part)} is not an index of a list of {len(node)} (the file's, or set the list whole)"
        )
    return int(part)


def explain(error: ValidationError, model: type[BaseModel] = RunConfig) -> list[str]:
    """Return what is wrong with values that `model` refuses, one line a fault: key, bound and value."""
    # A list counts as too short as well where some of its items were refused, each with its own message.
    return [
        _explain(detail, model)
        for detail in error.errors()
        if detail["type"] != "too_short" or len(list(detail["input"])) < detail["ctx"]["min_length"]
    ]


def _explain(detail: ErrorDetails, model: type[BaseModel]) -> str:
    key = ".".join(name_of(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"{key}: unknown key{near_key(key, model)}"
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    message = IN_YAML.get(detail["type"], message)
    if detail["type"] in ("too_short", "too_long"):
        message = message.replace("tuple should", "list should").replace(" after validation", "")
    given = list(detail["input"]) if isinstance(detail["input"], tuple) else detail["input"]
    value = "" if detail["type"] == "missing" else f", got {shown(given)}"
    card = str(given).partition("cuda:")[2] if key == "training.device" else ""
    remedy = f"; choose a card with CUDA_VISIBLE_DEVICES={card}" if card.isdecimal() else ""
    return f"{key or 'config'}: {message}{value}{remedy}"


def near_key(key: str, model: type[BaseModel] = RunConfig) -> str:
    """Name the nearest known key: among whole paths, then what another system's is here, then among last parts."""
    known = sorted(known_keys(model))
    generic = ".".join("*" if part.isdigit() else part for part in key.split("."))
    section, _, last = generic.rpartition(".")
    by_last = {name.rpartition(".")[2]: name for name in known}
    from grpo_core.interop.conversion import name_here  # here: it knows this package

    close = difflib.get_close_matches(generic, known, n=1, cutoff=0.75)
    if not close and last not in by_last and (of_others := name_here(last)):
        return f"; {of_others}"
    close = close or [by_last[name] for name in difflib.get_close_matches(last, by_last, n=1, cutoff=0.6)]
    siblings = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section]
    hint = f"; did you mean {close[0].replace('*', '0')}?" if close else ""
    return hint + (f" (keys here: {', '.join(siblings)})" if siblings else "")


def known_keys(model: type[BaseModel] = RunConfig) -> dict[str, dict[str, Any]]:
    """Return {key path, with `*` for a list index: its JSON schema} of every key, in the order of the fields."""
    schema = model.model_json_schema()

    def below(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, field in section.get("properties", {}).items():
            yield f"{prefix}{name}", field
            for kind, between in [(part, ".") for part in (field, *field.get("anyOf", ()))] + [(field.get("items", {}), ".*.")]:
                if "$ref" in kind:
                    yield from below(schema["$defs"][kind["$ref"].rpartition("/")[2]], f"{prefix}{name}{between}")

    return dict(below(schema, ""))


MAX_VALUES = 10_000
"""Every alias counts as the values that it stands for."""
MAX_LEVELS = 50
NO_VALUES = tuple(f"tag:yaml.org,2002:{name}" for name in ("timestamp", "value", "merge"))
"""What stays text in YAML 1.2."""


class _Resolver(VersionedResolver):
    """Which plain scalars are values."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node."""
        tag = super().resolve(kind, value, implicit)
        is_text = kind is ScalarNode and implicit[0] and (str(tag) in NO_VALUES or "_" in value)
        return Tag(suffix="tag:yaml.org,2002:str") if is_text else tag


class _Representer(SafeRepresenter):
    """Puts texts with characters that act into double quotes, in which YAML has the escapes of `visible`."""

    def represent_text(self, text: str) -> Any:
        """Return the node of a text."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if visible(text) == text else '"')


_Representer.add_representer(str, _Representer.represent_text)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Constructor, yaml.Representer = _Resolver, SafeConstructor, _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    return yaml


def parse_yaml(text: str) -> Any:
    """Return the plain values of a YAML 1.2 text, in new lists and objects.

    Raises:
        ConfigError: it is not valid YAML, or too large or too deep for a configuration; the message says where or how much.
    """
    with (
        raised_as(ConfigError, f"is nested too deeply (more than {MAX_LEVELS} levels)", RecursionError),
        raised_as(ConfigError, "is not valid YAML: {cause}", YAMLError, ValueError, ArithmeticError, LookupError, TypeError),
    ):
        return json_copy(_parsed(text))


@lru_cache(maxsize=32)
def _parsed(text: str) -> Any:
    """Return the values of a text, which nobody changes: the arms of a sweep share theirs."""
    try:
        values = _yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(f"is not valid YAML{where}: {error.problem or error.context}") from error
    if _count(values, {}, MAX_LEVELS) > MAX_VALUES:
        raise ConfigError(f"holds more than {MAX_VALUES} values once its aliases are written out")
    return values


def dump_yaml(values: Mapping[str, Any]) -> str:
    r"""Return values as YAML that reads back as they are, and in which no character acts on a terminal.

    >>> print(dump_yaml({"run_name": "a\x1b[2J\u202eb", "beta": "β"}))
    run_name: "a\e[2J\u202eb"
    beta: β
    <BLANKLINE>
    """
    written = io.StringIO()
    _yaml().dump(values, written)
    return "\n".join(map(visible, written.getvalue().split("\n")))


def _count(value: Any, counted: dict[int, int], levels: int) -> int:
    """Return how many values a value holds; each part is counted once, however often it is referred to."""
    if levels == 0:
        raise RecursionError
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counted:
        items = value.values() if isinstance(value, dict) else value
        counted[id(value)] = 1 + sum(_count(item, counted, levels - 1) for item in items)
    return counted[id(value)]
