"""Read a source file, apply its system's rules to each key, and leave out what this project refuses."""

import contextlib
import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from grpo_core.config.consistency import check_consistency
from grpo_core.config.loading import apply_overrides, validate_config
from grpo_core.config.schema import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.interop.detection import READ, SYSTEMS, detect_source, explain_source, refuse_unread_system
from grpo_core.interop.reading import Unresolved, flatten_sections, read_text, read_values_of, resolve_references
from grpo_core.interop.records import Conclusion, Entry, Group, Imported, Rule, Settings, System, dead, no_counterpart
from grpo_core.interop.rewards import is_missing_name
from grpo_core.interop.shell.file import Script, is_script, read_script
from grpo_core.interop.trl.versions import as_of

DEFAULTS = flatten_sections(RunConfig().model_dump(mode="json"))
"""{our key: default}, in the order of the schema."""
HELD_OUT = "data.eval_fraction holds some prompts out for evaluation; that system trains on every prompt of its data"
TO_FILL_IN = ("model.source", "data.source", "rewards")


COUNTED = (
    "nproc_per_node",
    "nnodes",
    "num_processes",
    "num_gpus",
    "num_nodes",
    "num_machines",
    "config_file",
    "accelerate_config",
)
"""Options of launchers that tell the number of processes."""


def import_config(
    path: Path | str,
    source: str | None = None,
    processes: int | None = None,
    command: int | None = None,
    trl_version: str | None = None,
) -> Imported:
    """Convert the settings of a run of another system into a configuration of this project.

    Args:
        path: of the file: YAML, JSON, or a shell script that starts the run, of which nothing is executed.
        source: `trl`, `open-r1`, `roll` or `vlm-r1`; None = by its keys.
        processes: training processes of the source's run; None = as the file implies, else 1.
        command: of a script, which of its training commands, from 1; None = the only one.
        trl_version: of settings of TRL, the release whose defaults are taken; None = 1.16.

    Raises:
        ConfigError: the file cannot be read, is no system's, another one's or that of several alike, has fewer keys that map
            than keys that are unknown, holds a value of the wrong type, or its own system refuses it.
    """
    path = Path(path)
    if source not in (None, *SYSTEMS):
        raise ConfigError(f"format: {source!r} is none of {', '.join(SYSTEMS)}")
    if processes is not None and processes < 1:
        raise ConfigError(f"processes: {processes} must be at least 1")
    text = read_text(path)
    is_shell = is_script(path, text)
    if command is not None and not is_shell:
        raise ConfigError(f"command: {command} chooses among the commands of a shell script; {path} is none")
    values: Mapping[str, Any] = {} if is_shell else read_values_of(path)
    refuse_unread_system(path, text if is_shell else "", values)
    script = read_script(path, text, command, read_values_of) if is_shell else None
    values = script.values if script else values
    found = source or detect_source(path, values)
    if trl_version is not None and found != "trl":
        raise ConfigError(f"trl-version: {trl_version} has no effect on settings of {SYSTEMS[found].title}; leave it out")
    system = as_of(SYSTEMS[found], trl_version) if found == "trl" else SYSTEMS[found]
    imported = _convert(path, values, system, processes, script)
    _refuse_strange(imported)
    return imported if source else replace(imported, notes=(explain_source(values, system), *imported.notes))


def _refuse_strange(imported: Imported) -> None:
    """Refuse a file of which hardly anything is this system's, whatever it is of."""
    given = [entry for entry in imported.entries if not entry.is_default]
    mapped = sum(entry.fate == "mapped" for entry in given)
    unknown = [entry.key for entry in given if entry.fate == "unknown"]
    if not mapped or mapped < len(unknown):
        names = f" ({', '.join(unknown[:8])})" if unknown else ""
        raise ConfigError(
            f"config {imported.path}: {mapped} of {len(given)} keys have a counterpart and {len(unknown)} are unknown to "
            f"{imported.title}{names}: either the file is of a system that is {READ}, or --format names the wrong one"
        )


def _convert(path: Path, values: Mapping[str, Any], system: System, processes: int | None, script: Script | None) -> Imported:
    # The files of TRL's family are flat, and their nested values are arguments of other libraries; ROLL's are OmegaConf.
    flat = dict(values) if system.parses_text else flatten_sections(resolve_references(values))
    settings = Settings(path, canonical(flat, system), system, processes or _processes(script, flat))
    named = {"config": flat.pop("config")} if script and "config" in flat else {}
    own = [_entry(key, value, no_counterpart("its settings are in these lists")) for key, value in named.items()]
    entries, nested, config = settle((*convert_all(flat, settings, system), *own, *_launched(script)))
    return Imported(
        path=path,
        title=system.title,
        version=system.version,
        values=nested,
        config=config,
        missing_rewards=tuple(reward["fn"] for reward in nested.get("rewards", ()) if is_missing_name(reward["fn"])),
        entries=entries,
        notes=(
            *system.assumptions(settings),
            *(script.notes if script else ()),
            *(_stray_commas(script, system) if script else ()),
            *_left_to_fill_in(nested),
            *(() if "data.eval_fraction" in flatten_sections(nested) else (HELD_OUT,)),
        ),
        warnings=check_consistency(config),
    )


def canonical(flat: Mapping[str, Any], system: System) -> dict[str, Any]:
    """Return the values that are known under the names that the system has now; the new name counts where both are given."""
    known = {key: value for key, value in flat.items() if not isinstance(value, Unresolved)}
    return {
        system.aliases.get(key, key): value for key, value in known.items() if system.aliases.get(key, key) not in known
    } | {key: value for key, value in known.items() if key not in system.aliases}


def _processes(script: Script | None, flat: Mapping[str, Any]) -> int | None:
    """Return the number of training processes that a script, or a recipe's `num_processes`, tells."""
    named = flat.get("num_processes")
    in_file = named if isinstance(named, int) and not isinstance(named, bool) and named >= 1 else None
    return (script.processes if script else None) or in_file


def _stray_commas(script: Script, system: System) -> Iterator[str]:
    """Yield a note for each argument whose values hold a comma that was meant to separate them."""
    for key, value in script.start.arguments.items():
        rule = system.find_rule(key)
        several = re.compile(r"[\w.]+(, *[\w.]+)+" if rule and _takes_list(rule) else r"(?!)")
        items = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
        stray = [repr(item) for item in items if item.strip(",") != item or several.fullmatch(item)]
        if stray:
            yield (
                f"{key}: in {', '.join(stray)} the comma is part of the value, since a shell separates values by blanks alone: "
                "that run had no value without it. If it was to separate, correct the value here"
            )


def _takes_list(rule: Rule) -> bool:
    with contextlib.suppress(ValueError):
        return bool(rule.read(["a"]) == ["a"])
    return False


def _launched(script: Script | None) -> tuple[Entry, ...]:
    """Return one entry for each option of the launcher."""
    if script is None:
        return ()
    return tuple(
        _entry(
            f"{script.start.launcher} --{key}",
            value,
            no_counterpart(
                "one training process here; it tells the number of processes, which enters the prompts of a step"
                if key in COUNTED
                else "of the launcher; one training process here"
            ),
        )
        for key, value in script.start.options.items()
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
    given = {system.aliases.get(key, key) for key in flat}
    return (
        *entries,
        *_defaults(given, settings, system, {target: value for entry in entries for target, value in entry.targets.items()}),
    )


def _entry(key: str, value: Any, conclusion: Conclusion, *, is_default: bool = False) -> Entry:
    return Entry(key=key, value=value, is_default=is_default, **vars(conclusion))


def _conclude(name: str, value: Any, settings: Settings, system: System) -> Conclusion:
    key = system.aliases.get(name, name)
    rule = system.find_rule(key)
    if isinstance(value, Unresolved):
        return no_counterpart(value.reason, differs=rule is not None)
    if key != name and settings.given.get(key, value) is not value:
        return dead(f"an older name of {key}, which is given as well")
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

    Rewards that are left to write stay in the values, and are no part of the configuration.

    Raises:
        ConfigError: what is refused is not a target of any entry.
    """
    while True:
        values = nest(entries)
        try:
            return entries, values, validate_config(_without_missing(values))
        except ConfigError as error:
            refused = _refusals(str(error), entries)
            if not refused:
                raise
            entries = tuple(_without(entry, refused) for entry in entries)


def _without_missing(values: Mapping[str, Any]) -> dict[str, Any]:
    rewards = [reward for reward in values.get("rewards", ()) if not is_missing_name(reward["fn"])]
    return {**{key: value for key, value in values.items() if key != "rewards"}, **({"rewards": rewards} if rewards else {})}


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
