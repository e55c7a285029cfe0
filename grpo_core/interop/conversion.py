"""Read a source file, apply its system's rules to each key, and leave out what this project refuses."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from grpo_core.config.consistency import check_consistency
from grpo_core.config.loading import apply_overrides, validate_config
from grpo_core.config.schema import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.interop.detection import READ, SYSTEMS, detect_source, explain_source, refuse_unread_system
from grpo_core.interop.files import Unresolved, flatten_sections, read_text, read_values, resolve_references
from grpo_core.interop.rules import Entry, Fate, Settings, System, Texts, dead, is_missing, no_counterpart
from grpo_core.interop.shell import Start, is_script, read_script
from grpo_core.interop.trl_releases import as_of

DEFAULTS = flatten_sections(RunConfig().model_dump(mode="json"))
"""{our key: default}, in the order of the schema."""
HELD_OUT = "data.eval_fraction holds some prompts out for evaluation; that system trains on every prompt of its data"
TO_FILL_IN = ("model.source", "data.source", "rewards")
OF_LAUNCHER = "of the launcher; one training process here, and the number there enters the prompts of a step"


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A converted configuration and what became of every key of its source."""

    path: Path
    title: str
    """Name of the source system."""
    version: str
    """What its names and defaults were read from."""
    values: Mapping[str, Any]
    """Nested plain values: what was mapped, with the rewards that are left to write."""
    config: RunConfig
    """The same, resolved and valid, without those rewards."""
    missing_rewards: tuple[str, ...]
    """Rewards that have no counterpart; `grpo check` refuses the configuration until they are written or removed."""
    entries: tuple[Entry, ...]
    """Every key of the file exactly once, then defaults of the source system that are not ours."""
    notes: tuple[str, ...]
    """What had to be assumed, or is left to fill in."""
    warnings: tuple[str, ...]
    """The warnings of `grpo check` about the result."""

    def listed(self, fate: Fate) -> tuple[Entry, ...]:
        """Return the entries of one list."""
        return tuple(entry for entry in self.entries if entry.fate == fate)


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
    text = read_text(path)
    is_shell = is_script(path, text)
    if command is not None and not is_shell:
        raise ConfigError(f"command: {command} chooses among the commands of a shell script; {path} is none")
    values: Mapping[str, Any] = {} if is_shell else read_values(path)
    refuse_unread_system(path, text if is_shell else "", values)
    start = read_script(path, text, command) if is_shell else None
    values = start.arguments if start else values
    found = source or detect_source(path, values)
    if trl_version is not None and found != "trl":
        raise ConfigError(f"trl-version: {trl_version} has no effect on settings of {SYSTEMS[found].title}; leave it out")
    system = as_of(trl_version) if found == "trl" else SYSTEMS[found]
    imported = _convert(path, values, system, processes, start)
    _refuse_strange(imported)
    return imported if source else replace(imported, notes=(explain_source(system), *imported.notes))


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


def _convert(path: Path, values: Mapping[str, Any], system: System, processes: int | None, start: Start | None) -> Imported:
    flat = resolve_references(flatten_sections(values)) if system.is_nested else dict(values)
    known = [(key, value) for key, value in flat.items() if not isinstance(value, Unresolved)]
    older_first = sorted(known, key=lambda item: item[0] not in system.aliases)
    given = {system.aliases.get(key, key): value for key, value in older_first}  # of two names of one key, the new one counts
    in_file = given.get("num_processes")
    counted = processes or (start.processes if start else None) or (in_file if isinstance(in_file, int) else None)
    settings = Settings(path, given, system, counted)
    entries = [replace(_conclude(key, value, settings), key=key, value=value) for key, value in flat.items()]
    entries += _defaults(settings, entries)
    if start:
        launcher = no_counterpart(OF_LAUNCHER)
        entries += [replace(launcher, key=f"{start.launcher} --{key}", value=value) for key, value in start.options.items()]
    settled, nested, config = _settle(entries)
    written = flatten_sections(nested)
    return Imported(
        path=path,
        title=system.title,
        version=system.version,
        values=nested,
        config=config,
        missing_rewards=tuple(reward["fn"] for reward in nested.get("rewards", ()) if is_missing(reward["fn"])),
        entries=tuple(settled),
        notes=(
            *system.assumptions(settings),
            *((*start.notes, *_stray_commas(start, system)) if start else ()),
            *(f"{key} is not in the file and stays at our default; set it" for key in TO_FILL_IN if key not in written),
            *(() if "data.eval_fraction" in written else (HELD_OUT,)),
        ),
        warnings=check_consistency(config),
    )


def _stray_commas(start: Start, system: System) -> Iterator[str]:
    """Yield a note for each argument whose values hold a comma that was meant to separate them."""
    for key, value in start.arguments.items():
        rule = system.find_rule(key)
        items = value if isinstance(value, list) else [value]
        stray = [repr(item) for item in items if isinstance(item, str) and item.strip(",") != item]
        if not stray and rule and isinstance(value, str) and "," in value and value.replace(",", "").isidentifier():
            stray = [repr(value)] if rule.kind in (Texts, Texts | None) else []
        if stray:
            yield (
                f"{key}: in {', '.join(stray)} the comma is part of the value, since a shell separates values by blanks alone: "
                "that run had no value without it. If it was to separate, correct the value here"
            )


def _conclude(name: str, value: Any, settings: Settings) -> Entry:
    """Return what becomes of a key of the file.

    Raises:
        ConfigError: a value is of the wrong type, or the source system itself would refuse the file.
    """
    system = settings.system
    key = system.aliases.get(name, name)
    rule = system.find_rule(key)
    if key == "config":
        return no_counterpart("the file of the settings, which are in these lists")
    if isinstance(value, Unresolved):
        return no_counterpart(value.reason, differs=rule is not None)
    if rule is not None:
        return rule.conclude(settings, key)
    if (reason := _reason(system.dead, key)) is not None:
        return dead(reason)
    if (reason := _reason(system.ignored, key)) is not None:
        return no_counterpart(reason)
    near = difflib.get_close_matches(key, [known for known in system.known() if "*" not in known], n=1, cutoff=0.8)
    return Entry(fate="unknown", remark=f"did you mean {near[0]}?" if near else "")


def _reason(reasons: Mapping[str, str], key: str) -> str | None:
    """Return the reason of the key itself, else that of the first pattern that fits."""
    patterns = (reason for pattern, reason in reasons.items() if fnmatchcase(key, pattern))
    return reasons.get(key) or next(patterns, None)


def _defaults(settings: Settings, given: list[Entry]) -> list[Entry]:
    """Return the absent keys whose default makes the source's run another one than our defaults would."""
    system = settings.system
    present = {system.aliases.get(entry.key, entry.key) for entry in given}
    covered = {target: value for entry in given for target, value in entry.targets.items()}
    entries = []
    for rule in system.rules:
        if rule.key in present or "*" in rule.key:
            continue
        found = rule.conclude(settings, rule.key)
        news = {key: value for key, value in found.targets.items() if key not in covered and value != DEFAULTS.get(key)}
        if news or (found.fate == "no_counterpart" and rule.reports_default):
            covered.update(news)
            entries.append(replace(found, key=rule.key, value=rule.default, targets=news, is_default=True))
    return entries


def _settle(entries: list[Entry]) -> tuple[list[Entry], dict[str, Any], RunConfig]:
    """Return (entries, nested values, configuration) after leaving out every target that this project refuses.

    Rewards that are left to write stay in the values, and are no part of the configuration.

    Raises:
        ConfigError: what is refused is not a target of any entry.
    """
    order = list(DEFAULTS)
    while True:
        targets = {key: value for entry in entries for key, value in entry.targets.items()}
        ordered = sorted(targets, key=lambda key: order.index(key) if key in order else len(order))
        nested = apply_overrides({}, {key: targets[key] for key in ordered})
        rewards = [reward for reward in nested.get("rewards", ()) if not is_missing(reward["fn"])]
        valid = {key: value for key, value in nested.items() if key != "rewards"} | ({"rewards": rewards} if rewards else {})
        try:
            return entries, nested, validate_config(valid)
        except ConfigError as error:
            refused = dict(_refused(str(error), targets))
            if not refused:
                raise
            entries = [_without(entry, refused) for entry in entries]


def _refused(message: str, targets: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (our key, why) of the targets that the lines of an error message begin with or, failing that, mention."""
    for line in message.splitlines():
        named = line.partition(":")[0].split(", ")
        heads = [key for key in targets if any(f"{part}.".startswith(f"{key}.") for part in named)]
        yield from ((key, line) for key in heads or [key for key in targets if key in line])


def _without(entry: Entry, refused: Mapping[str, str]) -> Entry:
    lost = entry.targets.keys() & refused.keys()
    if not lost:
        return entry
    kept = {key: value for key, value in entry.targets.items() if key not in lost}
    why = "; ".join(f"refused here, left at its default: {refused[key]}" for key in sorted(lost))
    return replace(entry, targets=kept, fate="mapped" if kept else "no_counterpart", remark=why, differs=True)
