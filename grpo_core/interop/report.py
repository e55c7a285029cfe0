"""Render an imported configuration: YAML that `grpo check` reads, with the lists of keys as comments."""

import json
import re
import textwrap
from typing import Any

from grpo_core.config.loading import dump_yaml
from grpo_core.interop.conversion import Imported
from grpo_core.interop.files import Unresolved
from grpo_core.interop.rules import Entry
from grpo_core.text import redact_uri

SECRET = re.compile(r"(api_?key|token|secret|password)$", re.IGNORECASE)
WRITE = (
    "`grpo check` refuses this file until these rewards are written or removed: {rewards}. Write each as a function "
    "f(prompts, completions, **columns) in a module of yours, and name it under rewards as module:function."
)
WIDTH = 120
LONGEST_VALUE = 160


def render(imported: Imported) -> str:
    """Return the YAML text of the configuration, with comments that hold every key of the source."""
    texts = (
        f"Imported by `grpo import-config` from {imported.path.name}: {summary(imported)}.",
        f"Names and defaults were read from {imported.version}.",
        *(WRITE.format(rewards=", ".join(imported.missing_rewards)) for _ in imported.missing_rewards[:1]),
        *(f"note: {text}" for text in imported.notes),
        *(f"`grpo check` warns: {text}" for text in imported.warnings),
    )
    head = [line for text in texts for line in _comment(text, "#   ")]
    return "\n".join([*head, dump_yaml(dict(imported.values)).rstrip(), "", *_lists(imported)]) + "\n"


def summary(imported: Imported) -> str:
    """Return one line: how many keys went where, and how many change the training."""
    given = [entry for entry in imported.entries if not entry.is_default]
    counts = {fate: sum(entry.fate == fate for entry in given) for fate in ("mapped", "no_counterpart", "dead", "unknown")}
    differing = sum(entry.differs for entry in imported.entries)
    return (
        f"{len(given)} keys of {imported.title}: {counts['mapped']} mapped, {counts['no_counterpart']} without counterpart, "
        f"{counts['dead']} dead in the source, {counts['unknown']} unknown; {differing} marked ! where the training differs"
        + (f"; rewards to write: {len(imported.missing_rewards)}" if imported.missing_rewards else "")
    )


def _lists(imported: Imported) -> list[str]:
    titles = {
        ("mapped", False): "mapped",
        ("mapped", True): f"mapped (default of {imported.title})",
        ("no_counterpart", None): "no counterpart",
        ("dead", None): "dead in the source itself",
        ("unknown", None): f"unknown to {imported.title}",
    }
    lines = list[str]()
    for (fate, is_default), title in titles.items():
        entries = [entry for entry in imported.entries if entry.fate == fate and is_default in (None, entry.is_default)]
        lines += [f"# --- {title} ---"] if entries else []
        lines += [line for entry in sorted(entries, key=lambda entry: not entry.differs) for line in _entry(entry)]
    return lines


def _entry(entry: Entry) -> list[str]:
    ours = "; ".join(f"{key} = {value_text(key, value)}" for key, value in entry.targets.items())
    absent = " (absent, its default)" if entry.is_default and entry.fate != "mapped" else ""
    head = f"{entry.key} = {value_text(entry.key, entry.value)}{absent}"
    arrow = f" -> {ours}" if ours else ""
    remark = "" if not entry.remark else f" ({entry.remark})" if ours else f": {entry.remark}"
    return _comment(f"{'!' if entry.differs else ' '} {head}{arrow}{remark}", "#       ")


def _comment(text: str, indent: str) -> list[str]:
    # A character that YAML takes for the end of a line would let a key of the source leave the comment.
    return [
        line.rstrip()
        for line in textwrap.wrap(
            "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text),
            WIDTH,
            initial_indent="# ",
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def value_text(key: str, value: Any) -> str:
    """Return a value in one short line; what looks like a credential is not shown.

    >>> value_text("tracker_kwargs.api_key", "abc"), value_text("beta", 0.04), value_text("top_k", None)
    ('"(not shown)"', '0.04', 'null')
    """
    if isinstance(value, Unresolved):
        return value.text
    shown = json.dumps(_redacted(key, value), ensure_ascii=False, default=str)
    if shown.startswith('"') and shown[1:-1].isprintable() and " " not in shown:
        shown = shown[1:-1] if shown != '""' else shown
    return shown if len(shown) <= LONGEST_VALUE else f"{shown[: LONGEST_VALUE - 3]}..."


def _redacted(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _redacted(str(name), item) for name, item in value.items()}
    if isinstance(value, list):
        return [_redacted(key, item) for item in value]
    if not isinstance(value, str):
        return value
    return "(not shown)" if SECRET.search(key) else redact_uri(value)
