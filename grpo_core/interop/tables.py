"""Tables for the documentation, written by `make docs`: the options of the algorithm, and the names of our keys elsewhere."""

from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from grpo_core.config.schema import RunConfig
from grpo_core.config.section import Section
from grpo_core.interop import open_r1, vlm_r1
from grpo_core.interop.roll import ROLL
from grpo_core.interop.rules import Rule
from grpo_core.interop.trl import TRL
from grpo_core.text import markdown_table

SECTIONS = ("rollout", "advantage", "filtering", "loss", "reference", "probe", "optimizer")


def render_names() -> str:
    """Return what every key of ours that has a counterpart is called in each system."""
    tables = (TRL.rules, open_r1.OWN, ROLL.rules, vlm_r1.OWN)
    ours = dict.fromkeys(key for rules in tables for rule in rules for key in rule.ours.split(", ") if key)
    rows = [(f"`{key}`", *(_names(key, rules) or "—" for rules in tables)) for key in ours]
    return markdown_table(("Key here", "TRL", "open-r1's own", "ROLL", "VLM-R1's own"), rows)


def _names(key: str, rules: Sequence[Rule]) -> str:
    return ", ".join(f"`{rule.key}`" for rule in rules if key in rule.ours.split(", "))


def algorithm_keys() -> dict[str, FieldInfo]:
    """Return {key path: field} of every key of the algorithm, in the order of the schema."""
    return {
        f"{section}.{name}": field
        for section in SECTIONS
        for name, field in RunConfig.model_fields[section].annotation.model_fields.items()  # type: ignore[union-attr]
        if not isinstance(field.default, Section)  # of a server, not of the algorithm
    }


def render_options() -> str:
    """Return the option table."""
    return markdown_table(("Key", "Default", "Values", "Meaning"), (_option(*item) for item in algorithm_keys().items()))


def _option(key: str, field: FieldInfo) -> tuple[str, ...]:
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    text = {"None": "null", "True": "true", "False": "false"}.get(str(default), str(default))
    return f"`{key}`", f"`{text}`", _values(field), str(field.description)


def _values(field: FieldInfo) -> str:
    """Return the range of a key in words: its choices, or its type with its bounds."""
    kinds = [field.annotation] if get_origin(field.annotation) in (None, Literal, tuple) else get_args(field.annotation)
    choices = [f"`{choice}`" for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices:
        return ", ".join(choices)
    words: dict[Any, str] = {int: "whole number", float: "number", bool: "`true`, `false`", type(None): "null"}
    named = [words.get(kind, "two numbers") for kind in kinds]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{sign} {getattr(item, name)}" for item in field.metadata for name, sign in signs.items() if hasattr(item, name)]
    return " or ".join([" ".join([named[0], *bounds]), *named[1:]])
