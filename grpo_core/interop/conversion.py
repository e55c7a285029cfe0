"""Read a source file, apply its system's rules to each key, and leave out what this project refuses."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from grpo_core.config.consistency import check_consistency
from grpo_core.config.loading import apply_overrides, validate_config
from grpo_core.config.schema import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.interop.reading import Unresolved, flatten_sections, read_source, resolve_references
from grpo_core.interop.records import Conclusion, Entry, Group, Imported, Settings, Source, System, dead, no_counterpart
from grpo_core.interop.roll.keys import ROLL
from grpo_core.interop.trl.keys import TRL

DEFAULTS = flatten_sections(RunConfig().model_dump(mode="json"))
"""{our key: default}, in the order of the schema."""
SYSTEMS: dict[str, System] = {"trl": TRL, "roll": ROLL}
HELD_OUT = "data.eval_fraction holds some prompts out for evaluation; that system trains on every prompt of its data"
TO_FILL_IN = ("model.source", "data.source", "rewards")


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
    settings = Settings(
        path, {key: value for key, value in flat.items() if not isinstance(value, Unresolved)}, system, processes
    )
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
    defaults = {**DEFAULTS, "rewards": ", ".join(reward["fn"] for reward in DEFAULTS["rewards"])}
    return tuple(
        f"{key} is not in the file and stays at our default ({defaults[key]}); set it"
        for key in TO_FILL_IN
        if key not in flatten_sections(nested)
    )


def convert_all(flat: Mapping[str, Any], settings: Settings, system: System) -> tuple[Entry, ...]:
    """Return one entry for each key of the file, then the system's defaults that are not ours.

    Raises:
        ConfigError: a value is of the wrong type, or the source system itself would refuse the file.
    """
    entries = [_entry(key, value, _conclude(key, value, settings, system)) for key, value in flat.items()]
    return (
        *entries,
        *_defaults(flat, settings, system, {target: value for entry in entries for target, value in entry.targets.items()}),
    )


def _entry(key: str, value: Any, conclusion: Conclusion, *, is_default: bool = False) -> Entry:
    return Entry(key=key, value=value, is_default=is_default, **vars(conclusion))


def _conclude(key: str, value: Any, settings: Settings, system: System) -> Conclusion:
    rule = system.find_rule(key)
    if isinstance(value, Unresolved):
        return no_counterpart(value.reason, differs=rule is not None)
    if rule is not None:
        return rule.conclude(settings, key)
    if (group := _find(system.dead, key)) is not None:
        return dead(group.reason)
    if (group := _find(system.ignored, key)) is not None:
        return no_counterpart(group.reason)
    near = difflib.get_close_matches(key, [known for known in system.known() if "*" not in known], n=1, cutoff=0.8)
    return Conclusion(fate="unknown", remark=f"did you mean {near[0]}?" if near else "")


def _find(groups: tuple[Group, ...], key: str) -> Group | None:
    """Return the group that names the key itself, else the first one with a pattern that fits."""
    matches = [group for group in groups if any(fnmatchcase(key, pattern) for pattern in group.keys)]
    return next((group for group in matches if key in group.keys), matches[0] if matches else None)


def _defaults(present: Collection[str], settings: Settings, system: System, covered: dict[str, Any]) -> list[Entry]:
    """Return the absent keys whose default makes the source's run another one than our defaults would."""
    entries = []
    for rule in system.rules:
        if rule.key in present or "*" in rule.key:
            continue
        found = rule.conclude(settings, rule.key)
        news = {key: value for key, value in found.targets.items() if key not in covered and value != DEFAULTS.get(key)}
        if news or (found.fate == "no_counterpart" and rule.reports_default):
            covered.update(news)
            entries.append(_entry(rule.key, rule.default, replace(found, targets=news), is_default=True))
    return entries


def settle(entries: tuple[Entry, ...]) -> tuple[tuple[Entry, ...], dict[str, Any], RunConfig]:
    """Return (entries, nested values, configuration) after leaving out every target that this project refuses.

    Raises:
        ConfigError: what is refused is not a target of any entry.
    """
    while True:
        values = nest(entries)
        try:
            return entries, values, validate_config(values)
        except ConfigError as error:
            refused = _refusals(str(error), entries)
            if not refused:
                raise
            entries = tuple(_without(entry, refused) for entry in entries)


def nest(entries: tuple[Entry, ...]) -> dict[str, Any]:
    """Return the mapped values as nested sections, in the order of the schema."""
    targets = {key: value for entry in entries for key, value in entry.targets.items()}
    order = {key: place for place, key in enumerate(DEFAULTS)}
    return apply_overrides({}, {key: targets[key] for key in sorted(targets, key=lambda key: order.get(key, len(order)))})


def _refusals(message: str, entries: tuple[Entry, ...]) -> dict[str, str]:
    """Return {our key: why} of the targets that the lines of an error message begin with or, failing that, mention."""
    targets = {key for entry in entries for key in entry.targets}
    refused = {}
    for line in message.splitlines():
        named = line.partition(":")[0].split(", ")
        heads = [key for key in targets if any(part == key or part.startswith(f"{key}.") for part in named)]
        for key in heads or [key for key in targets if key in line]:
            refused[key] = line
    return refused


def _without(entry: Entry, refused: Mapping[str, str]) -> Entry:
    lost = [key for key in entry.targets if key in refused]
    if not lost:
        return entry
    kept = {key: value for key, value in entry.targets.items() if key not in lost}
    why = "; ".join(f"refused here, left at its default: {refused[key]}" for key in lost)
    return replace(
        entry,
        targets=kept,
        fate="mapped" if kept else "no_counterpart",
        remark=f"{entry.remark}; {why}" if entry.remark and kept else why,
        differs=True,
    )
