"""Read a source file, apply its system's rules to each key, and leave out what this project refuses."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from grpo_core.config.consistency import check_consistency
from grpo_core.config.loading import apply_overrides, validate_config
from grpo_core.config.schema import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.interop.files import Unresolved, flatten_sections, read_text, read_values, resolve_references
from grpo_core.interop.roll import ROLL
from grpo_core.interop.rules import Entry, Settings, Source, System, dead, is_missing, no_counterpart
from grpo_core.interop.shell import Start, is_script, read_script
from grpo_core.interop.trl import TRL
from grpo_core.interop.trl_family import OPEN_R1, REGISTRY, as_of
from grpo_core.interop.vlm_r1 import VLM_R1
from grpo_core.interop.vlm_r1_rows import JoinedRows

SYSTEMS: dict[Source, System] = {"trl": TRL, "open-r1": OPEN_R1, "roll": ROLL, "vlm-r1": VLM_R1}


def name_here(key: str) -> str | None:
    """Return what a key of another system is here, or what is here in its place; None where none of them has it.

    >>> name_here("num_generations")
    "num_generations is TRL's name: here rollout.group_size"
    """
    for system in SYSTEMS.values():
        name = system.aliases.get(key, key)
        ours = "".join(rule.ours for rule in [system.find_rule(name)] if rule)
        if here := f"here {ours}" if ours else {**system.ignored, **system.dead}.get(name):
            return f"{key} is {system.title.split()[0]}'s name: {here}"
    return None


READ = "not one of the four that are read (TRL, open-r1, ROLL's RLVR pipeline, VLM-R1)"
FOREIGN = {
    "verl": r"actor_rollout_ref\b|algorithm\.adv_estimator|verl[./](trainer|recipe)",
    "OpenRLHF": r"openrlhf[./]cli|micro_rollout_batch_size|(actor|ref)_num_gpus_per_node",
    "NeMo-RL": r"grpo\.(num_(prompts|generations)_per|max_num_(steps|epochs)|max_rollout_turns|adv_estimator)|loss_fn\.\w"
    r"|policy\.(model_name|train_(global|micro)_batch_size|(dtensor|megatron|draft)_cfg|max_total_sequence_length|generation\.)|nemo_rl[./]",
    "prime-rl": r"orchestrator\.\w|rollouts_per_example|trainer\.optim\.|model\.(ac|compile)(?=\s|$)|prime_rl[./]|@ \S+\.toml",
    "ms-swift": r"rlhf_type|(swift|megatron) rlhf|swift[./]cli|external_plugins|(train|tuner)_type\b",
    "open-instruct": r"open_instruct[./]\w*grpo|num_(unique_prompts|samples_per_prompt)_rollout|dataset_mixer_list",
    "ROLL's agentic pipeline": r"(train|val)_env_manager\b|env_manager_cls|custom_envs\b|start_agentic_\w*pipeline",
}
"""{system that is not read: what only it has among key paths, programs and options}; hyphens are underscores."""


def refuse_unread_system(path: Path, text: str, values: Mapping[str, Any]) -> None:
    """Refuse settings of a system that is known and not read.

    Args:
        path: of the file, for the message.
        text: of a shell script; empty for a file of keys.
        values: of a file of keys.

    Raises:
        ConfigError: names the system, and by what it was recognised.
    """
    commands = re.sub(r"(?m)^\s*#.*$", "", text).replace("\\\n", " ")
    searched = "\n".join([re.sub(r"[ \t]+", " ", commands), *flatten_sections(values)]).replace("-", "_")
    for name, telling in FOREIGN.items():
        if (found := re.search(rf"(?m)(?<![A-Za-z0-9])(?:{telling})[\w.]*", searched)) is not None:
            raise ConfigError(
                f"config {path}: these are settings of {name} ({found[0]}), {READ}; write a configuration by hand"
            )


def detect_source(path: Path, values: Mapping[str, Any]) -> Source:
    """Return whose settings these are.

    open-r1 and VLM-R1 have all keys of TRL, so one of their own keys tells them apart, or a reward by its name in open-r1's
    registry; without one, the settings are TRL's.

    Raises:
        ConfigError: the keys fit none of the systems, or several alike.
    """
    trl, open_r1, roll, vlm_r1 = (system.known() | system.aliases.keys() for system in SYSTEMS.values())
    of_roll, rewards = {key.partition(".")[0] for key in roll}, values.get("reward_funcs")
    names = rewards if isinstance(rewards, list) else [rewards]
    of_open_r1 = len(values.keys() & (open_r1 - trl - vlm_r1)) + any(name in REGISTRY for name in names)
    of_vlm_r1 = len(values.keys() & (vlm_r1 - trl - open_r1))
    of_family = max(of_open_r1, of_vlm_r1, len(values.keys() & (trl - of_roll)))
    score = len(values.keys() & (of_roll - open_r1 - vlm_r1)) - of_family
    if score > 0:
        return "roll"
    if score < 0 and of_open_r1 != of_vlm_r1:
        return "open-r1" if of_open_r1 > of_vlm_r1 else "vlm-r1"
    if score < 0 and not of_open_r1:
        return "trl"
    raise ConfigError(
        f"config {path}: the keys do not show whose settings these are ({', '.join(sorted(values)[:8])}); name the format with "
        f"--format {', '.join(list(SYSTEMS)[:-1])} or {list(SYSTEMS)[-1]}"
    )


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
    rows: JoinedRows | None = None
    """What the new file for the rows holds that was asked for."""


def import_config(
    path: Path | str,
    source: str | None = None,
    processes: int | None = None,
    command: int | None = None,
    trl_version: str | None = None,
    *,
    rows: Path | None = None,
) -> Imported:
    """Convert the settings of a run of another system into a configuration of this project.

    Args:
        path: of the file: YAML, JSON, or a shell script that starts the run, of which nothing is executed.
        source: `trl`, `open-r1`, `roll` or `vlm-r1`; None = by its keys.
        processes: training processes of the source's run; None = as the file implies, else 1.
        command: of a script, which of its training commands, from 1; None = the only one.
        trl_version: of settings of TRL, the release whose defaults are taken; None = 1.16.
        rows: of settings of VLM-R1, the JSONL file for the rows of its data, which the caller writes (`Imported.rows`); the
            configuration names it. None = no such file.

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
    if rows is not None and system.joined is None:
        raise ConfigError(f"data: {rows} has no effect on settings of {system.title}; leave it out")
    imported = convert(values, path, system, processes, start, rows=rows)
    return imported if source else replace(imported, notes=(_assumed_defaults(system), *imported.notes))


def _assumed_defaults(system: System) -> str:
    """Return whose defaults are assumed of a file whose format was found by its keys."""
    own = "no key is open-r1's or VLM-R1's own" if system.name == "trl" else "the file has keys or rewards of its own"
    others = " or ".join(name for name in SYSTEMS if name not in (system.name, "roll"))
    remedy = "" if system.name == "roll" else f"; --format {others} takes those of another system"
    return f"the defaults of {system.title} are assumed where the file says nothing, since {own}{remedy}"


def convert(
    values: Mapping[str, Any],
    path: Path = Path("GRPOConfig"),
    system: System = TRL,
    processes: int | None = None,
    start: Start | None = None,
    *,
    rows: Path | None = None,
) -> Imported:
    """Convert settings, which messages call `path`; see `import_config`."""
    flat = resolve_references(flatten_sections(values)) if system.is_nested else dict(values)
    older_first = sorted(
        [(key, value) for key, value in flat.items() if not isinstance(value, Unresolved)],
        key=lambda item: item[0] not in system.aliases,
    )
    given = {system.aliases.get(key, key): value for key, value in older_first}  # of two names of one key, the new one counts
    in_file = given.get("num_processes")
    counted = processes or (start.processes if start else None) or (in_file if isinstance(in_file, int) else None)
    settings = Settings(path, given, system, counted, rows)
    entries = [replace(_conclude(key, value, settings), key=key, value=value) for key, value in flat.items()]
    _refuse_strange(settings, entries)
    entries += _defaults(settings, entries)
    entries += _of_launcher(start) if start else []
    entries, nested, config = _settle(entries)
    written = flatten_sections(nested)
    return Imported(
        path=path,
        title=system.title,
        version=system.version,
        values=nested,
        config=config,
        missing_rewards=tuple(reward["fn"] for reward in nested.get("rewards", ()) if is_missing(reward["fn"])),
        entries=tuple(entries),
        notes=(
            *system.assumptions(settings),
            *((*start.notes, *_stray_commas(start.arguments)) if start else ()),
            *(f"{key} is not in the file and stays at our default; set it" for key in TO_FILL_IN if key not in written),
            *(() if "data.eval_fraction" in written else (HELD_OUT,)),
        ),
        warnings=check_consistency(config),
        rows=system.joined(settings) if rows and system.joined else None,
    )


def _of_launcher(start: Start) -> list[Entry]:
    return [
        replace(no_counterpart(OF_LAUNCHER), key=f"{start.launcher} --{key}", value=value)
        for key, value in start.options.items()
    ]


def _stray_commas(arguments: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}: in {item!r} the comma is part of the value, since a shell separates values by blanks alone: that run had no "
        "value without it. If it was to separate, correct the value here"
        for key, value in arguments.items()
        for item in (value if isinstance(value, list) else [value])
        if isinstance(item, str) and item.strip(",") != item
    ]


def _refuse_strange(settings: Settings, given: Sequence[Entry]) -> None:
    """Refuse a file of which hardly anything is this system's, whatever it is of."""
    mapped, unknown = sum(entry.fate == "mapped" for entry in given), [entry.key for entry in given if entry.fate == "unknown"]
    names = f" ({', '.join(unknown[:8])})" if unknown else ""
    if not mapped or mapped < len(unknown):
        raise settings.refuse(
            f"{mapped} of {len(given)} keys have a counterpart and {len(unknown)} are unknown to {settings.system.title}"
            f"{names}: either the file is of a system that is {READ}, or --format "
            "names the wrong one"
        )


def _conclude(name: str, value: Any, settings: Settings) -> Entry:
    """Return what becomes of a key of the file.

    Raises:
        ConfigError: a value is of the wrong type, or the source system itself would refuse the file.
    """
    system = settings.system
    key = system.aliases.get(name, name)
    rule = system.find_rule(key)
    if isinstance(value, Unresolved):
        return no_counterpart(value.reason, differs=rule is not None)
    if rule is not None:
        return rule.conclude(settings, key)
    for reasons, conclude in ((system.dead, dead), (system.ignored, no_counterpart)):
        for pattern in (key, *reasons):
            if pattern in reasons and fnmatchcase(key, pattern):
                return conclude(reasons[pattern])
    near = difflib.get_close_matches(key, [known for known in system.known() if "*" not in known], n=1, cutoff=0.8)
    return Entry(fate="unknown", remark=f"did you mean {near[0]}?" if near else "")


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
        nested = apply_overrides(
            {}, {key: targets[key] for key in sorted(targets, key=lambda key: order.index(key) if key in order else len(order))}
        )
        rewards = [reward for reward in nested.get("rewards", ()) if not is_missing(reward["fn"])]
        valid = {key: value for key, value in nested.items() if key != "rewards"} | ({"rewards": rewards} if rewards else {})
        try:
            return entries, nested, validate_config(valid)
        except ConfigError as error:
            refused = dict(_refused(str(error), targets))
            if not refused:
                raise
            entries = [_without(entry, refused) if entry.targets.keys() & refused.keys() else entry for entry in entries]


def _refused(message: str, targets: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (our key, why) of the targets that the lines of an error message begin with or, failing that, mention."""
    for line in message.splitlines():
        heads = [key for key in targets if any(f"{part}.".startswith(f"{key}.") for part in line.partition(":")[0].split(", "))]
        yield from ((key, line) for key in heads or [key for key in targets if key in line])


def _without(entry: Entry, refused: Mapping[str, str]) -> Entry:
    kept = {key: value for key, value in entry.targets.items() if key not in refused}
    return replace(
        entry,
        targets=kept,
        fate="mapped" if kept else "no_counterpart",
        remark="; ".join(
            f"refused here, left at its default: {refused[key]}" for key in sorted(entry.targets.keys() & refused.keys())
        ),
        differs=True,
    )
