"""YAML 1.1, as PyYAML reads it: the dialect of the systems whose files are imported.

`no` is false there, and `010` is 8. Only two things are read otherwise than by PyYAML's safe loader. `1e-5` is a number: TRL's
argument parser makes one of the text, and OmegaConf reads it as one. A key given twice is refused unless both are one plain
value; PyYAML takes the last.
"""

import re
from typing import Any

import yaml

from grpo_core.errors import ConfigError, raised_as


class _PyYamlLoader(yaml.SafeLoader):
    """PyYAML's loader with numbers such as 1e-5, and with keys refused that are given twice with different values."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node, after comparing the values of keys that are given twice."""
        firsts: dict[str, yaml.Node] = {}
        for key, value in node.value:
            first = firsts.setdefault(str(key.value), value)
            if first is not value and not _are_equal(first, value):
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} is given twice, with different values", key.start_mark
                )
        return yaml.SafeLoader.construct_mapping(self, node, deep=deep)


_PyYamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml11(text: str) -> Any:
    """Return the plain values of a YAML 1.1 text.

    Raises:
        ConfigError: it is not valid YAML, or too large or too deep for a configuration; the message says where or how much.
    """
    with raised_as(ConfigError, "is not valid YAML: {cause}", yaml.YAMLError, ValueError, LookupError, RecursionError):
        return yaml.load(text, _PyYamlLoader)


def _are_equal(first: yaml.Node, second: yaml.Node) -> bool:
    """Return whether two nodes are the same plain value; lists and mappings are not compared."""
    are_scalars = isinstance(first, yaml.ScalarNode) and isinstance(second, yaml.ScalarNode)
    return are_scalars and (first.tag, first.value) == (second.tag, second.value)
