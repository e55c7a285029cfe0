"""YAML text to plain values and back: YAML 1.2's core schema by PyYAML's safe loader, with its traps closed.

PyYAML itself reads YAML 1.1, in which `yes` is true, `12:30:45` is 45045, `010` is 8 and `1e-6` is text. A key given twice is
refused; aliases that would multiply a short text into millions of values, and nesting without end, are refused before anything
is built.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from grpo_core.errors import ConfigError, raised_as
from grpo_core.plain_text import visible
from grpo_core.redaction import redact_uri

MAX_VALUES = 10_000
"""Every alias counts as the values that it stands for."""
MAX_LEVELS = 50
SHOWN_COLUMNS = 60
"""Characters of an offending line that a message shows on either side of the fault."""
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""Where PyYAML begins to count a new line."""


class BoundedLoader(yaml.SafeLoader):
    """The safe loader (YAML 1.1), which also refuses keys that are given twice, and texts that stand for too many values."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the values of a document, after counting them: nothing is built of one that is too large."""
        if _count(node, {}, MAX_LEVELS) > MAX_VALUES:
            raise ConfigError(f"holds more than {MAX_VALUES} values once its aliases are written out")
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node, after refusing keys that are given twice."""
        keys = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in keys[:place]:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
        return super().construct_mapping(node, deep=deep)


class _Loader(BoundedLoader):
    """The same with the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema); merge keys (`<<`) are kept."""

    def construct_int(self, node: yaml.ScalarNode) -> int:
        """Return the value of digits in base 10, or after `0o` or `0x` in base 8 or 16: `010` is 10."""
        text = self.construct_scalar(node)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))

    def construct_float(self, node: yaml.ScalarNode) -> float:
        """Return the value of a decimal number, of `.inf` or of `.nan`."""
        text = self.construct_scalar(node).lower()
        value = float(text.replace(".inf", "inf").replace(".nan", "nan"))
        if value == 0 and re.search("[1-9]", text.partition("e")[0]):
            raise yaml.constructor.ConstructorError(None, None, f"{text} is too small: it would be read as 0", node.start_mark)
        return value


_Loader.yaml_implicit_resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_float)

CORE_SCHEMA = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)
"""(tag, what a plain scalar of it looks like, its first characters), in the order in which they are tried."""
for _tag, _pattern, _first in CORE_SCHEMA:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first)


def parse_yaml(text: str) -> Any:
    """Return the plain values of a YAML 1.2 text.

    Raises:
        ConfigError: it is not valid YAML, or too large or too deep for a configuration; the message says where or how much.
    """
    return parse_with(_Loader, text)


def parse_with(loader: type[BoundedLoader], text: str) -> Any:
    """Return the plain values of a text as a loader reads it.

    Raises:
        ConfigError: it is not valid YAML, or too large or too deep for a configuration; the message says where or how much.
    """
    # Beside its own errors PyYAML lets those of Python's types out: a date such as 2026-13-45, a time zone of 99 hours.
    with (
        raised_as(ConfigError, f"is nested too deeply (more than {MAX_LEVELS} levels)", RecursionError),
        raised_as(
            ConfigError, "is not valid YAML: {cause}", yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError
        ),
    ):
        try:
            return copy_plain(yaml.load(text, loader))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            if mark is None:
                raise
            what = ", ".join(filter(None, (error.context, error.problem)))
            where = f"line {mark.line + 1}, column {mark.column + 1}"
            raise ConfigError(f"is not valid YAML, {where}: {what}\n{_pointed_line(text, mark)}") from error


def _pointed_line(text: str, mark: yaml.Mark) -> str:
    """Return the line of a mark as a terminal shows it, and below it a caret under the marked character."""
    lines = _LINE_END.split(text)
    # Where a text ends too early, the mark may lie behind its last line, which is often empty.
    number = next(index for index in range(min(mark.line, len(lines) - 1), -1, -1) if lines[index].strip() or index == 0)
    line = lines[number]
    column = min(mark.column, len(line)) if number == mark.line else len(line)
    if redact_uri(line) != line:  # half a password would not be recognised as one: such a line is not cut, and has no caret
        return f"  {visible(redact_uri(line))}"
    before, after = line[max(0, column - SHOWN_COLUMNS) : column], line[column : column + SHOWN_COLUMNS]
    return f"  {visible(before)}{visible(after)}\n  {' ' * len(visible(before))}^"


class _Dumper(yaml.SafeDumper):
    """The safe dumper, which also quotes what either YAML takes for a value (`1e5`, `yes`), and characters that act."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return the node of a text; in double quotes YAML has the escapes of `visible`."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if visible(text) == text else '"')


_Dumper.add_representer(str, _Dumper.represent_text)
for _tag, _pattern, _first in CORE_SCHEMA:
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first)


def dump_yaml(values: Mapping[str, Any]) -> str:
    r"""Return values as YAML that reads back as they are, and in which no character acts on a terminal.

    >>> print(dump_yaml({"run_name": "a\x1b[2J\u202eb", "beta": "β"}))
    run_name: "a\e[2J\u202eb"
    beta: β
    <BLANKLINE>
    """
    return "\n".join(map(visible, yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True).split("\n")))


def copy_plain(value: Any) -> Any:
    """Return a copy of nested mappings and lists in which no part is shared."""
    if isinstance(value, Mapping):
        return {key: copy_plain(item) for key, item in value.items()}
    return [copy_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _count(node: yaml.Node, counted: dict[int, int], levels: int) -> int:
    """Return how many values a node stands for; a node that contains itself is nested without end.

    Each node is counted once, however often it is referred to, so a text that would take hours to write out takes no time here.
    """
    if levels == 0:
        raise ConfigError(f"is nested too deeply (more than {MAX_LEVELS} levels)")
    if id(node) not in counted:
        counted[id(node)] = 1 + sum(_count(child, counted, levels - 1) for child in _children(node))
    return counted[id(node)]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        yield from child if isinstance(child, tuple) else (child,)
