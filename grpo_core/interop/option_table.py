"""The option table of docs/algorithm.md: every key of the algorithm from the schema, with its names in other systems."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from grpo_core.config.schema import RunConfig
from grpo_core.interop.roll.keys import ROLL
from grpo_core.interop.trl.keys import TRL
from grpo_core.interop.vlm_r1 import ALWAYS, VLM_R1

SECTIONS = ("rollout", "advantage", "filtering", "loss", "reference", "probe", "optimizer")
NONE = "—"


def algorithm_keys() -> dict[str, FieldInfo]:
    """Return {key path: field} of every key of the algorithm, in the order of the schema."""
    return {
        f"{section}.{name}": field
        for section in SECTIONS
        for name, field in RunConfig.model_fields[section].annotation.model_fields.items()  # type: ignore[union-attr]
    }


def render_options() -> str:
    """Return the option table."""
    head = "| Key | Default | Values | Meaning | TRL | ROLL | VLM-R1 |"
    rows = [_row(key, field) for key, field in algorithm_keys().items()]
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows])


def names_elsewhere(key: str) -> tuple[str, str, str]:
    """Return what TRL, ROLL and VLM-R1 call a key of ours; without backticks: what they always do."""
    systems = [([(rule.key, rule.ours) for rule in system.rules], system.always) for system in (TRL, ROLL)]
    trl, roll = (_cell(key, *system) for system in systems)
    return trl, roll, _cell(key, [(name, row.ours) for row in VLM_R1 for name in row.names.split(", ")], ALWAYS)


def _cell(key: str, names: Iterable[tuple[str, str]], always: Mapping[str, str]) -> str:
    theirs = [f"`{name}`" for name, ours in names if key in ours.split(", ")]
    return "; ".join(filter(None, (", ".join(theirs), always.get(key)))) or NONE


def _row(key: str, field: FieldInfo) -> str:
    cells = [f"`{key}`", f"`{_text(field.default)}`", _values(field), str(field.description), *names_elsewhere(key)]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


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
