"""The runs that are compared, opened and named by what differs, each with a colour; and those that cannot be read, with why."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_core.compare.settings import Setting, name_lines
from grpo_core.errors import ConfigError, GrpoError, JournalError, SweepError, cause
from grpo_core.run.curves import RunCurves
from grpo_core.run.flow_folder import read_marker
from grpo_core.run.opened import Run
from grpo_core.sweep.folder import SWEEP_FILE, SweepDir

MOST_RUNS = 60
"""More lines cannot be told apart, and the page becomes slow."""
ENDED = frozenset(["finished", "stopped", "failed", "died"])
"""States of a run that will not get longer by itself."""
TAB10 = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
    *("#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"),
)
DASHES = ("solid", "dash", "dot", "dashdot")
"""Of lines, as plotly names them; more runs than colours take them in turn."""


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


OpenedRun = tuple[Source, Run, RunCurves]
"""A run as it was read, and what is drawn of it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparedRun:
    """One run of a comparison."""

    source: Source
    run: Run
    curves: RunCurves
    label: str
    """What its lines are called: first what differs, such as `β=0.1`."""
    colour: str
    dash: str
    """Of its lines, as plotly names it."""


@dataclass(frozen=True, kw_only=True)
class UnreadRun:
    """A run that was asked for and could not be read."""

    source: Source
    fault: str


def find_sources(given: Sequence[Source]) -> tuple[list[Source], list[str]]:
    """Return every run once, a sweep's folder replaced by its runs; and what a reader should know about the choice.

    Raises:
        SweepError: no run of a sweep has begun.
        ConfigError: there are more runs than one figure can show.
    """
    notes: list[str] = []
    found: dict[Path, Source] = {}
    for source in given:
        for one in _runs_of(source, notes):
            found.setdefault(one.path.expanduser().resolve(), one)
    if len(found) > MOST_RUNS:
        raise ConfigError(f"{len(found)} runs are given; at most {MOST_RUNS} can be told apart in one figure: give fewer")
    return list(found.values()), notes


def _runs_of(source: Source, notes: list[str]) -> list[Source]:
    if not (source.path / SWEEP_FILE).exists():
        return [source]
    begun = begun_runs(SweepDir(source.path))
    if not begun:
        raise SweepError(f"sweep dir {source.path}: none of its runs has begun, so there is nothing to compare yet")
    if len(begun) > MOST_RUNS:
        notes.append(
            f"{source.given} has {len(begun)} runs; shown are {MOST_RUNS} of them, the lowest seeds first: "
            "give the folders of other runs to see these"
        )
        begun = sorted(sorted(begun, key=lambda path: (int(path.name.rpartition("-")[2]), path.name))[:MOST_RUNS])
    return [Source(given=str(path), path=path) for path in begun]


def begun_runs(sweep_dir: SweepDir) -> list[Path]:
    """Return the folders of a sweep's runs that have begun."""
    return sorted(file.parent for file in sweep_dir.runs.glob("arm-*-seed-*/config.json"))


def open_runs(sources: Sequence[Source]) -> tuple[list[OpenedRun], list[UnreadRun]]:
    """Open runs; one that cannot be read is named with its fault.

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
    return opened, unread


def _open_training(source: Source) -> OpenedRun:
    run = Run(source.path)
    marker = read_marker(run.path)
    if marker is not None and marker.kind == "evaluation":
        raise JournalError(f"run {source.given}: is an evaluation, which has no steps; give the folder of a training")
    # The curves too, while a fault can still be laid to this run alone.
    return source, run, run.curves()


def with_looks(opened: Sequence[OpenedRun], settings: Sequence[Setting]) -> tuple[ComparedRun, ...]:
    """Return runs with the name, the colour and the dashes of their lines, given the settings in which they differ."""
    labels = name_lines(settings, [run.path.name for _, run, _ in opened], [run.name for _, run, _ in opened])
    return tuple(
        ComparedRun(
            source=source,
            run=run,
            curves=curves,
            label=label,
            colour=TAB10[index % len(TAB10)],
            dash=DASHES[index // len(TAB10) % len(DASHES)],
        )
        for index, ((source, run, curves), label) in enumerate(zip(opened, labels, strict=True))
    )
