"""The runs that are compared, opened and named by what differs, each with a colour; and those that cannot be read, with why."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from grpo_core.compare.colours import dash_of, distinct_colours
from grpo_core.compare.settings import Setting, differing_settings, name_lines
from grpo_core.errors import ConfigError, GrpoError, JournalError, SweepError, cause
from grpo_core.machine.locks import lock_holder
from grpo_core.machine.marker import read_marker
from grpo_core.run.curves import RunCurves
from grpo_core.run.folder import RunDir
from grpo_core.run.opened import Run
from grpo_core.sweep.display import kl_lines
from grpo_core.sweep.folder import SWEEP_FILE, SweepDir

MOST_RUNS = 60
"""More lines cannot be told apart, and the page becomes slow."""
ENDED = frozenset(["finished", "stopped", "failed", "died"])
"""States of a run that will not get longer by itself."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A run as it was asked for."""

    given: str
    """What the user typed: a folder or an MLflow run id."""
    path: Path
    is_downloaded: bool = False
    """Whether the folder is a copy that MLflow gave, which is removed again."""

    @property
    def place(self) -> str:
        """Where a reader finds the run."""
        return f"MLflow run {self.given}" if self.is_downloaded else str(self.path)


class OpenedRun(NamedTuple):
    """A run as it was read, not named among others yet."""

    source: Source
    run: Run
    name: str
    curves: RunCurves


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparedRun:
    """One run of a comparison."""

    source: Source
    run: Run
    curves: RunCurves
    """What is drawn of it."""
    label: str
    """What its lines are called: first what differs, such as `β=0.1`."""
    colour: str
    """As `#rrggbb`."""
    dash: str
    """Of its lines, as plotly names it."""


@dataclass(frozen=True, kw_only=True)
class UnreadRun:
    """A run that was asked for and could not be read."""

    source: Source
    fault: str


@dataclass(frozen=True, kw_only=True)
class OpenedRuns:
    """What came of opening runs."""

    runs: tuple[ComparedRun, ...]
    unread: tuple[UnreadRun, ...]
    settings: tuple[Setting, ...]
    """In which the runs differ; values in the order of `runs`."""
    notes: tuple[str, ...]

    @property
    def have_ended(self) -> bool:
        """Whether no run can get longer by itself."""
        paths = [*(one.source.path for one in self.runs), *(one.source.path for one in self.unread)]
        return all(compared.run.state in ENDED for compared in self.runs) and not any(map(is_worked_on, paths))


def find_sources(given: Sequence[Source]) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    """Return every run once, a sweep's folder replaced by its runs; and what a reader should know about the choice.

    Raises:
        SweepError: no run of a sweep has begun.
        ConfigError: there are more runs than one figure can show.
    """
    notes: list[str] = []
    found: dict[Path, Source] = {}
    for source in given:
        for one in _runs_of(source, notes):
            place = one.path.expanduser().resolve()
            if place in found:
                notes.append(f"{one.given} is given twice and shown once")
            found.setdefault(place, one)
    if len(found) > MOST_RUNS:
        raise ConfigError(f"{len(found)} runs are given; at most {MOST_RUNS} can be told apart in one figure: give fewer")
    return tuple(found.values()), tuple(dict.fromkeys(notes))


def _runs_of(source: Source, notes: list[str]) -> list[Source]:
    if not (source.path / SWEEP_FILE).exists():
        return [source]
    sweep_dir = SweepDir(source.path)
    begun = begun_runs(sweep_dir)
    if not begun:
        raise SweepError(f"sweep dir {source.path}: none of its runs has begun, so there is nothing to compare yet")
    if len(begun) > MOST_RUNS:
        first = sorted(begun, key=lambda path: (_seed_of(path), path.name))[:MOST_RUNS]
        notes.append(
            f"{source.given} has {len(begun)} runs; shown are {MOST_RUNS} of them, the lowest seeds first: "
            "give the folders of other runs to see these"
        )
        begun = sorted(first)
    return [Source(given=str(path), path=path) for path in begun]


def is_worked_on(path: Path) -> bool:
    """Return whether a flow or a training works on the run, or a flow on the sweep, in a folder.

    Between two processes of a run, such as the training and the final evaluation, its flow alone shows that it is under way.
    """
    run_dir = RunDir(path.expanduser())  # the lock of a sweep has the same name
    return any(lock_holder(file) is not None for file in (run_dir.lock_file, run_dir.journal_file))


def begun_runs(sweep_dir: SweepDir) -> list[Path]:
    """Return the folders of a sweep's runs that have begun."""
    return sorted(file.parent for file in sweep_dir.runs.glob("arm-*-seed-*/config.json"))


def _seed_of(path: Path) -> int:
    digits = path.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def open_runs(sources: Sequence[Source], notes: Sequence[str] = ()) -> OpenedRuns:
    """Open runs for a comparison; one that cannot be read is named with its fault, and the others are compared.

    Args:
        sources: as `find_sources` gives them.
        notes: about their choice.

    Raises:
        JournalError: none of them can be read.
    """
    opened: list[OpenedRun] = []
    unread: list[UnreadRun] = []
    for source in sources:
        try:
            opened.append(_open_training(source))
        except (GrpoError, OSError) as error:
            unread.append(UnreadRun(source=source, fault=str(error) if isinstance(error, GrpoError) else cause(error)))
    if not opened:
        faults = "\n".join(f"{one.source.given}: {one.fault}" for one in unread)
        raise JournalError(f"none of the runs can be read:\n{faults}")
    settings = differing_settings([one.run.config for one in opened])
    labels = name_lines(settings, [one.run.path.name for one in opened], [one.name for one in opened])
    colours = distinct_colours(len(opened))
    runs = tuple(
        ComparedRun(
            source=one.source, run=one.run, curves=one.curves, label=label, colour=colour, dash=dash_of(index, len(opened))
        )
        for index, (one, label, colour) in enumerate(zip(opened, labels, colours, strict=True))
    )
    return OpenedRuns(
        runs=runs,
        unread=tuple(unread),
        settings=settings,
        notes=(*notes, *_notes(runs), *kl_lines(one.key for one in settings)),
    )


def _open_training(source: Source) -> OpenedRun:
    run = Run(source.path)
    marker = read_marker(run.path)
    if marker is not None and marker.kind == "evaluation":
        raise JournalError(f"run {source.given}: is an evaluation, which has no steps; give the folder of a training")
    # All that a comparison reads of it, while a fault can still be laid to this run alone.
    return OpenedRun(source, run, run.name, run.curves())


def _notes(runs: Sequence[ComparedRun]) -> list[str]:
    empty = [f"{one.label}: no step is finished yet ({one.run.state})" for one in runs if not one.run.last_step]
    of_journals = [f"{one.label}: {note}" for one in runs for note in one.run.notes]
    alone = ["there is one run, so nothing is compared"] if len(runs) == 1 else []
    return [*alone, *empty, *of_journals]
