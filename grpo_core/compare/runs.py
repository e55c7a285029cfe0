"""The runs that are compared: opened, named by the settings in which they differ; and the faults of those that cannot be."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.config.origin import NAMED_CHANGES, NAMED_CHARACTERS, named_settings
from grpo_core.config.spelling import KNOB_NAMES, arm_name, cut, level_name
from grpo_core.data.prepare import read_manifest
from grpo_core.errors import ConfigError, GrpoError, JournalError, SweepError, cause
from grpo_core.run.curves import CURVE_KINDS, Run, RunCurves
from grpo_core.run.flow_folder import FlowDir
from grpo_core.sweep.folder import SweepDir
from grpo_core.text import visible

MOST_RUNS = 60
"""More lines cannot be told apart, and the page becomes slow."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""Of lines; more seeds than dashes take them in turn."""
SEED = "training.seed"
NOT_COMPARED = "tracking."
"""Where a run is tracked and what it is called there changes none of its figures."""
ABSENT = "(absent)"
"""The value of a key that a configuration does not have, such as the second of one reward."""
Settings = Mapping[str, tuple[Any, ...]]
"""Key in which the configurations of runs differ -> its values in the order of the runs."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A run as it was asked for."""

    given: str
    """What the user typed: a folder or an MLflow run id."""
    path: Path
    is_downloaded: bool = False

    @property
    def place(self) -> str:
        """Where a reader finds the run."""
        return f"MLflow run {self.given}" if self.is_downloaded else str(self.path)


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparedRun:
    """One run of a comparison."""

    source: Source
    run: Run
    curves: RunCurves
    label: str = ""
    """What its lines are called: first what differs, such as `β 0.1 · s0`."""
    setting: str = ""
    """What differs, but the seed."""
    colour: int = 0
    """Number of its setting, or of the run where all have one setting."""
    dash: str = DASHES[0]

    @cached_property
    def prompts(self) -> str | None:
        """Digest of its frozen prompts; None where they are not known."""
        try:
            return read_manifest(self.run.dir.data).digest
        except GrpoError:
            return None


def find_sources(given: Sequence[Source]) -> tuple[list[Source], list[str]]:
    """Return every run once, a sweep's folder replaced by its runs; and what a reader should know about the choice.

    Raises:
        SweepError: no run of a sweep has begun.
        ConfigError: there are more runs than one figure can show.
    """
    notes: list[str] = []
    found: dict[Path, Source] = {}
    for source in given:
        runs, sweep_dir = [source], SweepDir(source.path)
        if sweep_dir.sweep_file.exists():
            begun = begun_runs(sweep_dir)
            if not begun:
                raise SweepError(f"sweep dir {source.path}: none of its runs has begun, so there is nothing to compare yet")
            if len(begun) > MOST_RUNS:
                notes.append(f"{source.given} has {len(begun)} runs; shown are {MOST_RUNS} of them, the lowest seeds first")
                begun = sorted(sorted(begun, key=lambda path: int(path.name.rpartition("-")[2]))[:MOST_RUNS])
            runs = [Source(given=str(path), path=path) for path in begun]
        found |= {one.path.expanduser().resolve(): one for one in runs}
    if len(found) > MOST_RUNS:
        raise ConfigError(f"{len(found)} runs are given; at most {MOST_RUNS} can be told apart in one figure: give fewer")
    return list(found.values()), notes


def begun_runs(sweep_dir: SweepDir) -> list[Path]:
    """Return the folders of a sweep's runs that have begun."""
    return sorted(file.parent for file in sweep_dir.runs.glob("arm-*-seed-*/config.json"))


def open_runs(sources: Sequence[Source]) -> tuple[list[ComparedRun], dict[str, str]]:
    """Open runs; return them without their looks, and for each that cannot be read (by what was given for it) its fault.

    Raises:
        JournalError: none of them can be read.
    """
    opened: list[ComparedRun] = []
    faults: dict[str, str] = {}
    for source in sources:
        try:
            run = Run(source.path)
            marker = FlowDir(run.path).marker()
            if marker is not None and marker.kind == "evaluation":
                raise JournalError(f"run {source.given}: is an evaluation, which has no steps; give the folder of a training")
            measured = sorted({key for record in run.records for key in record.metrics})
            keys = dict.fromkeys((*CURVE_KINDS, *measured))
            opened.append(ComparedRun(source=source, run=run, curves=run.curves(*keys)))
        except (GrpoError, OSError) as error:
            faults[source.given] = str(error) if isinstance(error, GrpoError) else cause(error)
    if not opened:
        raise JournalError("\n".join(["none of the runs can be read:", *(f"{name}: {why}" for name, why in faults.items())]))
    return opened, faults


def differing_settings(configs: Sequence[RunConfig]) -> dict[str, tuple[Any, ...]]:
    """Return the keys in which any two configurations differ, those first that have a name of their own, the seed last."""
    flat = [named_settings(config) for config in configs]
    keys = [key for key in dict.fromkeys(key for values in flat for key in values) if not key.startswith(NOT_COMPARED)]
    named = [key for key in KNOB_NAMES if key in keys]
    order = [*named, *(key for key in keys if key not in (*named, SEED)), *(key for key in keys if key == SEED)]
    found = {key: tuple(values.get(key, ABSENT) for values in flat) for key in order}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}


def name_lines(settings: Settings, runs: Sequence[Run]) -> list[str]:
    """Return what each run is called beside its line: first what differs, `β 0.1 · sync never`.

    Runs with the same settings are told apart by their folders; where all have the same, they go by their names in MLflow.
    """
    short = [key for key in settings if key in KNOB_NAMES]
    others = [key for key in settings if key not in KNOB_NAMES and key != SEED]
    shown = [*short, *others[: NAMED_CHANGES if short else 2 * NAMED_CHANGES], *(key for key in settings if key == SEED)]
    texts = [_name_of({key: settings[key][index] for key in shown}) for index in range(len(runs))]
    counts = Counter(texts)
    return numbered(
        [
            " · ".join([text or visible(run.name), *([visible(run.path.name)] if counts[text] > 1 else [])])
            for text, run in zip(texts, runs, strict=True)
        ]
    )


def name_group(values: Mapping[str, Any]) -> str:
    """Return what runs with the same settings are called together: every key that differs, with its value."""
    return _name_of(values) or arm_name(values) or "the same settings"


def _name_of(values: Mapping[str, Any]) -> str:
    known = {key: cut(level_name(key, value), NAMED_CHARACTERS) for key, value in values.items() if value != ABSENT}
    return arm_name(known)


def with_looks(opened: Sequence[ComparedRun], settings: Settings) -> tuple[ComparedRun, ...]:
    """Return runs with names and looks: one colour a setting, one dash a seed.

    Where all have one setting, each has a colour; of runs with the same setting and seed, each has a dash.
    """
    labels = name_lines(settings, [one.run for one in opened])
    keys = [tuple(repr(values[at]) for key, values in settings.items() if key != SEED) for at in range(len(opened))]
    seeds = sorted({one.run.config.training.seed for one in opened})
    colours = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    names = [name_group({key: values[at] for key, values in settings.items() if key != SEED}) for at in range(len(opened))]
    titles = dict(zip(colours, numbered([names[keys.index(key)] for key in colours]), strict=True))
    taken, found = set[tuple[Any, int]](), list[ComparedRun]()
    for at, (one, key, label) in enumerate(zip(opened, keys, labels, strict=True)):
        dash = seeds.index(one.run.config.training.seed)
        while (key, dash) in taken:
            dash += 1
        taken.add((key, dash))
        colour = colours[key] if len(colours) > 1 else at
        found.append(replace(one, label=label, setting=titles[key], colour=colour, dash=DASHES[dash % len(DASHES)]))
    return tuple(found)


def numbered(names: Sequence[str]) -> list[str]:
    """Return names, one that stands further left already with a number."""
    return [f"{name} ({names[:at].count(name) + 1})" if name in names[:at] else name for at, name in enumerate(names)]
