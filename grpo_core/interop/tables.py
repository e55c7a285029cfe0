"""The names of our keys elsewhere, a table of the documentation that `make docs` writes."""

from collections.abc import Sequence

from grpo_core.interop import open_r1, vlm_r1
from grpo_core.interop.roll import ROLL
from grpo_core.interop.rules import Rule
from grpo_core.interop.trl import TRL
from grpo_core.plain_text import markdown_table


def render_names() -> str:
    """Return what every key of ours that has a counterpart is called in each system."""
    tables = (TRL.rules, open_r1.OWN, ROLL.rules, vlm_r1.OWN)
    ours = dict.fromkeys(key for rules in tables for rule in rules for key in rule.ours.split(", ") if key)
    rows = [(f"`{key}`", *(_names(key, rules) or "—" for rules in tables)) for key in ours]
    return markdown_table(("Key here", "TRL", "open-r1's own", "ROLL", "VLM-R1's own"), rows)


def _names(key: str, rules: Sequence[Rule]) -> str:
    return ", ".join(f"`{rule.key}`" for rule in rules if key in rule.ours.split(", "))
