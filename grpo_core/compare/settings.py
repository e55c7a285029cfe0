"""In which settings runs differ, and what each is called by that."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.config.origin import NAMED_CHANGES, NAMED_CHARACTERS, named_settings
from grpo_core.plain_text import visible
from grpo_core.sweep.display import KNOB_NAMES, arm_name, level_name

SEED = "training.seed"
NOT_COMPARED = ("tracking.",)
"""Where a run is tracked and what it is called there changes none of its figures."""


class Absent:
    """The value of a key that a configuration does not have, such as the second of one reward."""

    def __repr__(self) -> str:
        """Return what a table shows."""
        return "(absent)"


ABSENT = Absent()


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A key in which the configurations of runs differ."""

    key: str
    values: tuple[Any, ...]
    """One per run, `ABSENT` where its configuration does not have the key."""

    def texts(self) -> tuple[str, ...]:
        """Return the values as a table shows them."""
        return tuple(level_name(self.key, value) for value in self.values)


def differing_settings(configs: Sequence[RunConfig]) -> tuple[Setting, ...]:
    """Return the keys in which any two configurations differ, those first that have a name of their own, the seed last."""
    flat = [named_settings(config) for config in configs]
    found = [
        Setting(key=key, values=tuple(values.get(key, ABSENT) for values in flat))
        for key in dict.fromkeys(key for values in flat for key in values)
        if not key.startswith(NOT_COMPARED)
    ]
    named = list(KNOB_NAMES)
    differing = [setting for setting in found if any(value != setting.values[0] for value in setting.values)]
    return tuple(
        sorted(
            differing,
            key=lambda setting: (setting.key == SEED, named.index(setting.key) if setting.key in named else len(named)),
        )
    )


def name_lines(settings: Sequence[Setting], folders: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return what each run is called beside its line: first what differs, `β=0.1 sync=never`; no two alike.

    Args:
        settings: in which the runs differ.
        folders: the name of each run's folder, which tells apart runs with the same settings.
        names: what each run is called in MLflow, which names its line where the settings of all runs are the same.
    """
    shown = _shown(settings)
    differ = [_name_of({setting.key: setting.values[index] for setting in shown}) for index in range(len(folders))]
    counts = Counter(differ)
    lines: list[str] = []
    for text, folder, name in zip(differ, folders, names, strict=True):
        parts = [text] if text else [visible(name)]
        if counts[text] > 1:
            parts.append(visible(folder))
        lines.append(" · ".join(parts))
    return _numbered(lines)


def name_groups(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what runs with the same settings are called together: every key that differs, with its value; no two alike.

    Args:
        groups: of each the values of the keys in which any runs differ, the seed left out.
    """
    return _numbered([_name_of(values) or arm_name(values) or "the same settings" for values in groups])


def _shown(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings that a name has room for: those with a short name, the seed, and a few others."""
    short = [setting for setting in settings if setting.key in KNOB_NAMES]
    seed = [setting for setting in settings if setting.key == SEED]
    others = [setting for setting in settings if setting not in (*short, *seed)]
    return [*short, *others[: NAMED_CHANGES if short else 2 * NAMED_CHANGES], *seed]


def _name_of(values: Mapping[str, Any]) -> str:
    present = {key: _cut(key, value) for key, value in values.items() if value is not ABSENT}
    return arm_name(present)


def _cut(key: str, value: Any) -> Any:
    text = level_name(key, value)
    return value if len(text) <= NAMED_CHARACTERS else f"{text[: NAMED_CHARACTERS - 1]}…"


def _numbered(lines: Sequence[str]) -> list[str]:
    """Return the lines, those that are there already with a number: two runs in folders of the same name."""
    numbered: dict[str, None] = {}
    for line in lines:
        free = (f"{line} ({number})" for number in itertools.count(2))
        numbered[line if line not in numbered else next(name for name in free if name not in numbered)] = None
    return list(numbered)
