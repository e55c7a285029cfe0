"""YAML text to plain values and back: YAML 1.2 by ruamel.yaml's safe loader, which refuses keys that are given twice.

YAML 1.2 has no dates, no `1_000` and no merge keys, which ruamel.yaml reads all the same. Aliases that would multiply a short
text into millions of values, and nesting without end, are refused before anything is copied.
"""

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from grpo_core.errors import ConfigError, raised_as
from grpo_core.text import visible

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
    """Return the plain values of a YAML 1.2 text.

    Raises:
        ConfigError: it is not valid YAML, or too large or too deep for a configuration; the message says where or how much.
    """
    too_deep = f"is nested too deeply (more than {MAX_LEVELS} levels)"
    with (
        raised_as(ConfigError, too_deep, RecursionError),
        raised_as(ConfigError, "is not valid YAML: {cause}", YAMLError, ValueError, ArithmeticError, LookupError, TypeError),
    ):
        try:
            values = _yaml().load(text)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
            raise ConfigError(f"is not valid YAML{where}: {error.problem or error.context}") from error
        if _count(values, {}, MAX_LEVELS) > MAX_VALUES:
            raise ConfigError(f"holds more than {MAX_VALUES} values once its aliases are written out")
        return copy_plain(values)


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


def copy_plain(value: Any) -> Any:
    """Return a copy of nested mappings and lists in which no part is shared."""
    if isinstance(value, Mapping):
        return {key: copy_plain(item) for key, item in value.items()}
    return [copy_plain(item) for item in value] if isinstance(value, list | tuple) else value


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
