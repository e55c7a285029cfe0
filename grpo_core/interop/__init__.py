"""Import a run's settings from TRL or ROLL: the equivalent configuration, and what became of every key.

`trl/` and `roll/` are tables of rules, `conversion.py` applies them, `report.py` renders the result; `tables.py` renders
the tables themselves as docs/importing.md, `option_table.py` the names of our keys elsewhere. TRL's table also works the other
way round: `trl/engine.py` makes of a configuration what TRL's trainer is given. To add a key: one rule, or one name in a group
of `ignored.py`.
"""

from pathlib import Path

from grpo_core.config.consistency import check_consistency
from grpo_core.errors import ConfigError
from grpo_core.interop.conversion import DEFAULTS, convert_all, settle
from grpo_core.interop.reading import Unresolved, flatten_sections, read_source, resolve_references
from grpo_core.interop.records import Entry, Fate, Imported, Settings, Source, System
from grpo_core.interop.report import render, summary
from grpo_core.interop.roll.keys import ROLL
from grpo_core.interop.trl.keys import TRL

SYSTEMS: dict[str, System] = {"trl": TRL, "roll": ROLL}
HELD_OUT = "data.eval_fraction holds some prompts out for evaluation; that system trains on every prompt of its data"
TO_FILL_IN = ("model.source", "data.source", "rewards")

__all__ = ["SYSTEMS", "Entry", "Fate", "Imported", "Source", "detect_source", "import_config", "render", "summary"]


def import_config(path: Path | str, source: str | None = None, processes: int | None = None) -> Imported:
    """Convert a TRL or ROLL settings file (YAML or JSON) into a configuration of this project.

    Args:
        path: the file.
        source: `trl` or `roll`; None = by its keys.
        processes: training processes of the source's run; None = as the file implies, else 1.

    Raises:
        ConfigError: the file cannot be read, is neither system's, holds a value of the wrong type, or its own system
            refuses it.
    """
    path = Path(path)
    if source not in (None, *SYSTEMS):
        raise ConfigError(f"format: {source!r} is none of {', '.join(SYSTEMS)}")
    if processes is not None and processes < 1:
        raise ConfigError(f"processes: {processes} must be at least 1")
    values = read_source(path)
    system = SYSTEMS[source or detect_source(path, values)]
    # TRL's files are flat, and its nested values are arguments of other libraries; ROLL's are OmegaConf.
    flat = values if system is TRL else flatten_sections(resolve_references(values))
    given = {key: value for key, value in flat.items() if not isinstance(value, Unresolved)}
    settings = Settings(path, given, system, processes)
    entries, nested, config = settle(convert_all(flat, settings, system))
    return Imported(
        path=path,
        title=system.title,
        values=nested,
        config=config,
        entries=entries,
        notes=(*system.assumptions(settings), *_left_to_fill_in(nested), HELD_OUT),
        warnings=check_consistency(config),
    )


def detect_source(path: Path, values: dict[str, object]) -> Source:
    """Return whose settings these are, by the keys that only one of the systems has.

    Raises:
        ConfigError: the keys fit neither, or both alike.
    """
    tops = {name: {key.partition(".")[0] for key in system.known()} for name, system in SYSTEMS.items()}
    trl = len(values.keys() & (tops["trl"] - tops["roll"]))
    roll = len(values.keys() & (tops["roll"] - tops["trl"]))
    if trl != roll:
        return "trl" if trl > roll else "roll"
    keys = ", ".join(sorted(values)[:8])
    if {"rollout", "loss", "optimizer", "training"} & values.keys():
        raise ConfigError(f"config {path}: looks like a configuration of this project ({keys}); `grpo check` reads it as it is")
    raise ConfigError(
        f"config {path}: the keys do not show whether these are TRL's or ROLL's settings ({keys}); "
        "name the format with --format trl or --format roll"
    )


def _left_to_fill_in(nested: dict[str, object]) -> tuple[str, ...]:
    given = flatten_sections(nested)
    return tuple(
        f"{key} is not told by the file and stays at our default ({_default_text(key)}); set it"
        for key in TO_FILL_IN
        if key not in given
    )


def _default_text(key: str) -> str:
    value = DEFAULTS[key]
    return ", ".join(reward["fn"] for reward in value) if isinstance(value, list) else str(value)
