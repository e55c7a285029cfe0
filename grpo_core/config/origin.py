"""Load a configuration: a preset (a file of `configs/`, named without folder and suffix), and what is changed of it.

Names and descriptions of runs are made of the changes.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_core.config.derived import reference_moments
from grpo_core.config.loading import KNOBS, apply_overrides, as_overrides, read_values, validate_config
from grpo_core.config.names import near
from grpo_core.config.schema import RunConfig
from grpo_core.config.spelling import SHORT, arm_name, cut, level_name
from grpo_core.errors import ConfigError, name_of
from grpo_core.text import visible

NAMED_CHANGES = 2
"""How many changes beside the knobs a name holds."""
NAMED_CHARACTERS = 24
"""Longer values are cut in a name."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A preset and the keys whose value is another than the preset's."""

    preset: str = "run"
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """{key.path: (the preset's value, the run's value)}."""
    import_from: tuple[str, ...] = ()
    """Folders in which the run's own reward functions are looked for, behind what is installed."""
    forked_from: Mapping[str, str | int | None] | None = None
    """Of a fork: the `run` from which it goes on, a folder or MLflow's id, its `mlflow_run_id`, the `step`, of the
    checkpoint before, `checkpoint_step` and the SHA-256 of its manifest, `checkpoint`; and what is `changed`, as text."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is doubtful about the changes."""
        before, now = self.changes.get("optimizer.lr", (None, None))
        if not before or not now or now <= 100 * before:
            return ()
        return (f"optimizer.lr: {now:g} is {now / before:,.0f} times that of {self.preset} ({before:g})",)


@dataclass(frozen=True, kw_only=True)
class Resolved(Origin):
    """A configuration and what it changes of its preset: made once, and handed on."""

    config: RunConfig


def load(path: Path | str | None = None, overrides: Mapping[str, Any] | Iterable[str] | None = None) -> Resolved:
    """Return the validated configuration of a YAML file or preset (None = all defaults), overrides last.

    Args:
        path: of the file, or a preset's name.
        overrides: {key.path: value}, or texts `key.path=value` as on the command line.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or given twice, a value is out of range, or keys contradict.
    """
    changes, file = as_overrides(overrides or {}), None if path is None else find_config(path)
    values = {} if file is None else read_beside(file)
    config = validate_config(apply_overrides(values, changes))
    try:
        preset: RunConfig | None = validate_config(values) if changes else config
    except ConfigError:  # the file alone is not valid: everything is the run's own
        preset = None
    return Resolved(
        config=config,
        preset="run" if file is None else preset_of(file),
        changes=changes_between(preset, config),
    )


def preset_of(file: Path) -> str:
    """Return what a configuration's file is called: what `grpo init` writes, after its folder."""
    return file.resolve().parent.name if file.name == "config.yaml" else file.stem


def read_beside(file: Path) -> dict[str, Any]:
    """Return the plain values of a configuration's file, as they are meant beside it.

    A path in it that leads from the file's folder somewhere is that one. Where it names no experiment, that is the project:
    of a preset its name, else the file's folder.

    Raises:
        ConfigError: as `read_values`.
    """
    values, folder = read_values(file), file.resolve().parent
    tracking = values.setdefault("tracking", {})
    if isinstance(tracking, dict) and tracking.get("experiment") is None:
        is_preset = folder in [place.resolve() for place in FOLDERS]
        tracking["experiment"] = (file.stem if is_preset else cut(visible(folder.name), 200)) or "grpo"
    for section in (part for name in ("data", "model") if isinstance(part := values.get(name), dict)):
        kind, colon, path = str(section.get("source", "")).rpartition(":")
        beside = os.path.join(file.parent, path)  # noqa: PTH118  (as it is written)
        if path and kind in ("", "file") and file.parent != Path() and os.path.exists(beside):  # noqa: PTH110
            section["source"] = f"{kind}{colon}{beside}"
    return values


def load_config(path: Path | str | None = None, overrides: Mapping[str, Any] | Iterable[str] | None = None) -> RunConfig:
    """Return the configuration alone that `load` returns."""
    return load(path, overrides).config


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return {key.path: value} of every leaf; a list of sections is numbered, other lists are one value.

    >>> flatten(RunConfig())["rewards.0.fn"]
    'reasoning_gym'
    """
    return dict(leaves("", config.model_dump(mode="json")))


def named_settings(config: RunConfig) -> dict[str, Any]:
    """Return the leaves as names show them: a reference that follows the drift is not one that stays as it is."""
    source = re.sub("^file:.*/given/", "file:", config.data.source)  # rows that were given in Python are told by their digest
    return flatten(config) | {KNOBS["ref_sync_steps"]: reference_moments(config), "data.source": source}


def leaves(prefix: str, value: Any) -> list[tuple[str, Any]]:
    """Return (key.path, value) of every leaf of a plain value, as `flatten` does."""
    if isinstance(value, dict) and value:
        pairs = value.items()
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        pairs = {str(index): item for index, item in enumerate(value)}.items()
    else:
        return [(prefix, value)]
    return [leaf for key, item in pairs for leaf in leaves(f"{prefix}.{key}" if prefix else key, item)]


def changes_between(before: RunConfig | None, now: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return {key.path: (value before, value now)} of every key whose value differs; None = there was nothing before."""
    old, new = {} if before is None else flatten(before), flatten(now)
    return {key: (old.get(key), new.get(key)) for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)}


def run_name(config: RunConfig, origin: Origin) -> str:
    """Return what a run is called everywhere: as somebody named it (`tracking.run_name`), else by its settings.

    Those that are swept are always there, with the first few others that differ from the preset's.

    >>> run_name(RunConfig(), Origin(changes={"training.steps": (5, 100)}))
    'β 0.04 · G 8 · sync never · s0 · steps 100'
    """
    if config.tracking.run_name:
        return config.tracking.run_name
    settings = named_settings(config)
    changed = [key for key in origin.changes if not key.startswith("tracking.") and key not in KNOBS.values()]
    others = sorted(changed, key=lambda key: key not in SHORT)
    named = (*KNOBS.values(), *others[:NAMED_CHANGES])
    more = [f"+{len(others) - NAMED_CHANGES} more"] if len(others) > NAMED_CHANGES else []
    more += [f"fork of {Path(str(begun['run'])).name}@{begun['step']}"] if (begun := origin.forked_from) else []
    texts = {key: cut(level_name(key, settings.get(key)), NAMED_CHARACTERS) for key in named}
    return " · ".join([arm_name(texts), *more])


SUFFIX, SUFFIXES = ".yaml", (".yaml", ".yml", ".json")
FOLDERS = (Path("configs"), Path(__file__).parents[1].joinpath("presets").resolve())
"""Where presets are looked for: where the command runs, then in the package, where the repository has a link to `configs/`."""
SWEEPS = "sweeps"
"""Folder of the sweep files among them."""


def find_sweep(name: Path | str) -> Path:
    """Return the path of a sweep file: one of `configs/sweeps/` by name, or `name` itself where it is a path.

    Raises:
        ConfigError: it looks like such a name and there is none.
    """
    return find_config(name, "sweep", SWEEPS)


def preset_names(below: str = "") -> list[str]:
    """Return the names of the presets, or of the files in a folder below them."""
    return sorted({file.stem for folder in FOLDERS for file in (folder / below).glob(f"*{SUFFIX}")})


def find_config(name: Path | str, kind: str = "config", below: str = "") -> Path:
    """Return the path of a configuration: a preset's (`quickstart`), or `name` itself where it is a path.

    Args:
        name: of a preset, or a path.
        kind: what it is, for the message.
        below: the folder of the presets in which it is looked for.

    Raises:
        ConfigError: it looks like the name of a preset and there is none of that name.
    """
    path = Path(name)
    # os.path: a name of more than 255 bytes is no error to it.
    if os.path.isfile(path) or path.suffix in SUFFIXES or len(path.parts) != 1:  # noqa: PTH113
        return path
    for found in (folder / below / f"{name}{SUFFIX}" for folder in FOLDERS):
        if os.path.isfile(found):  # noqa: PTH113
            return found
    names = preset_names(below)
    raise ConfigError(
        f"{kind} {name_of(str(name))}: no such preset{near(str(name), names)} (presets: {', '.join(names)}; or give the path "
        "of a YAML file)"
    )
