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
NOT_COMPARED = "tracking."
"""Where a run is tracked and what it is called there changes none of its figures."""
ABSENT = "(absent)"
"""The value of a key that a configuration does not have, such as the second of one reward."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A key in which the configurations of runs differ."""

    key: str
    values: tuple[Any, ...]

    def texts(self) -> tuple[str, ...]:
        """Return the values as a table shows them."""
        return tuple(level_name(self.key, value) for value in self.values)


def differing_settings(configs: Sequence[RunConfig]) -> tuple[Setting, ...]:
    """Return the keys in which any two configurations differ, those first that have a name of their own, the seed last."""
    flat = [named_settings(config) for config in configs]
    keys = [key for key in dict.fromkeys(key for values in flat for key in values) if not key.startswith(NOT_COMPARED)]
    order = [*KNOB_NAMES, *(key for key in keys if key not in (*KNOB_NAMES, SEED)), SEED]
    found = [
        Setting(key=key, values=tuple(values.get(key, ABSENT) for values in flat)) for key in sorted(keys, key=order.index)
    ]
    return tuple(one for one in found if any(value != one.values[0] for value in one.values))


def name_lines(settings: Sequence[Setting], folders: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return what each run is called beside its line: first what differs, `β=0.1 sync=never`; no two alike.

    Args:
        settings: in which the runs differ.
        folders: the name of each run's folder, which tells apart runs with the same settings.
        names: what each run is called in MLflow, which names its line where the settings of all runs are the same.
    """
    short = [one for one in settings if one.key in KNOB_NAMES]
    others = [one for one in settings if one.key not in KNOB_NAMES and one.key != SEED]
    room = NAMED_CHANGES if short else 2 * NAMED_CHANGES
    shown = [*short, *others[:room], *(one for one in settings if one.key == SEED)]
    differ = [_name_of({one.key: one.values[index] for one in shown}) for index in range(len(folders))]
    counts = Counter(differ)
    return _numbered(
        [
            " · ".join([text or visible(name), *([visible(folder)] if counts[text] > 1 else [])])
            for text, folder, name in zip(differ, folders, names, strict=True)
        ]
    )


def name_groups(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what runs with the same settings are called together: every key that differs, with its value; no two alike.

    Args:
        groups: of each the values of the keys in which any runs differ, the seed left out.
    """
    return _numbered([_name_of(values) or arm_name(values) or "the same settings" for values in groups])


def _name_of(values: Mapping[str, Any]) -> str:
    texts = {key: level_name(key, value) for key, value in values.items()}
    cut = {key: f"{text[: NAMED_CHARACTERS - 1]}…" for key, text in texts.items() if len(text) > NAMED_CHARACTERS}
    return arm_name({key: cut.get(key, value) for key, value in values.items() if value != ABSENT})


def _numbered(lines: Sequence[str]) -> list[str]:
    """Return the lines, those that are there already with a number: two runs in folders of the same name."""
    numbered: dict[str, None] = {}
    for line in lines:
        names = itertools.chain([line], (f"{line} ({number})" for number in itertools.count(2)))
        numbered[next(name for name in names if name not in numbered)] = None
    return list(numbered)
