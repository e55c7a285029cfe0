"""Every configuration key with its default, its range and its meaning, as tables: `docs/keys.md` is written from here."""

from typing import Any

from grpo_core.config.loading import known_keys
from grpo_core.config.schema import RunConfig
from grpo_core.text import markdown_table

HEAD = ("Key", "Default", "Values", "Meaning")
PAGE = """# Every configuration key

Written from the field docstrings by `make docs`; edit `grpo_core/config/`, not this page. `grpo
train quickstart loss.beta=0` changes one key. Most numbers also have an upper bound far above what
a run can want; the message of a refusal names it.
"""
WORDS = {"integer": "integer", "boolean": "boolean", "object": "section", "string": "text"}
LARGEST_SHOWN = 1000
"""Bounds beyond it are left out."""
SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def render_keys() -> str:
    """Return the page: a table for each section."""
    keys = known_keys()
    parts = [PAGE]
    for section, field in RunConfig.model_fields.items():
        about = keys[section].get("description") or field.annotation.__doc__
        rows = [_row(key, inner) for key, inner in keys.items() if key.startswith(f"{section}.") and "description" in inner]
        parts.append(f"## {section}\n\n{about}\n\n{markdown_table(HEAD, rows)}\n")
    return "\n".join(parts)


def _row(key: str, field: dict[str, Any]) -> tuple[str, ...]:
    default = field.get("default", "(required)")
    if isinstance(default, list) and default and isinstance(default[0], dict):  # the monitor's rules
        default = ", ".join(rule["kind"] for rule in default)
    text = {"None": "null", "True": "true", "False": "false"}.get(str(default), str(default))
    values = _values(field).removesuffix(" or null" if text == "null" else "")
    return f"`{key.replace('*', '0')}`", f"`{text}`", values, str(field["description"])


def _values(field: dict[str, Any]) -> str:
    """Return the range of a key in words: its choices, or its type with its bounds."""
    if "anyOf" in field:
        return " or ".join(map(_values, field["anyOf"]))
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if field.get("type") == "array":
        return f"list of {_values(field.get('items') or field['prefixItems'][0])}"
    given = {sign: field[name] for name, sign in SIGNS.items() if name in field and abs(field[name]) <= LARGEST_SHOWN}
    bounds = [f"{sign} {int(value) if value == int(value) else value}" for sign, value in given.items()]
    return " ".join([WORDS.get(field.get("type", "object"), field.get("type", "")), *bounds])
