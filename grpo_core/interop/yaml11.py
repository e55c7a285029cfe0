"""YAML 1.1, as PyYAML reads it: the dialect of the systems whose files are imported.

`no` is false there, and `010` is 8. Only two things are read otherwise than by PyYAML's safe loader. `1e-5` is a number: TRL's
argument parser makes one of the text, and OmegaConf reads it as one. A key given twice is refused unless both are one plain
value; PyYAML takes the last. Texts that stand for too many values are refused before anything is built.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from grpo_core.errors import ConfigError, raised_as

MAX_VALUES = 10_000
"""Every alias counts as the values that it stands for."""
MAX_LEVELS = 50


class _PyYamlLoader(yaml.SafeLoader):
    """The safe loader with numbers such as 1e-5, and with keys that are given twice refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node, after comparing the values of keys that are given twice."""
        firsts: dict[str, yaml.Node] = {}
        for key, value in node.value:
            first = firsts.setdefault(str(key.value), value)
            if first is not value and not _are_equal(first, value):
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} is given twice, with different values", key.start_mark
                )
        return super().construct_mapping(node, deep=deep)


_PyYamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml11(text: str) -> Any:
    """Return the plain values of a YAML 1.1 text.

    Raises:
        ConfigError: it is not valid YAML, or too large or too deep for a configuration; the message says where or how much.
    """
    with (
        raised_as(ConfigError, f"is nested too deeply (more than {MAX_LEVELS} levels)", RecursionError),
        # Beside its own errors PyYAML lets those of Python's types out: a date such as 2026-13-45.
        raised_as(
            ConfigError, "is not valid YAML: {cause}", yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError
        ),
    ):
        loader = _PyYamlLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _count(node, {}, MAX_LEVELS) > MAX_VALUES:
                raise ConfigError(f"holds more than {MAX_VALUES} values once its aliases are written out")
            return loader.construct_document(node)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = ", ".join(filter(None, (error.context, error.problem)))
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise ConfigError(f"is not valid YAML{where}: {what}") from error
        finally:
            loader.dispose()


def _count(node: yaml.Node, counted: dict[int, int], levels: int) -> int:
    """Return how many values a node stands for; each node is counted once, however often it is referred to."""
    if levels == 0:
        raise ConfigError(f"is nested too deeply (more than {MAX_LEVELS} levels)")
    if id(node) not in counted:
        counted[id(node)] = 1 + sum(_count(child, counted, levels - 1) for child in _children(node))
    return counted[id(node)]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        yield from child if isinstance(child, tuple) else (child,)


def _are_equal(first: yaml.Node, second: yaml.Node) -> bool:
    """Return whether two nodes are the same plain value; lists and mappings are not compared."""
    are_scalars = isinstance(first, yaml.ScalarNode) and isinstance(second, yaml.ScalarNode)
    return are_scalars and (first.tag, first.value) == (second.tag, second.value)
