"""What the folder of a run and the folder of a sweep have in common: each is marked, held and tracked by one flow.

A start holds the lock of its folder from its first moment: of two that begin in one folder, one is refused.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, ClassVar, Literal

from grpo_core.errors import FolderError, JournalError, few_names, raised_as
from grpo_core.machine.locks import locked_soon, open_lock
from grpo_core.machine.marker import (
    MARKER_FILE,
    Kind,
    Marker,
    foreign_entries,
    read_marker,
    refuse_special_place,
    write_marker,
)

RUNS_FOLDER = Path("runs")
ROOTS_VARIABLE = "GRPO_RUN_ROOTS"
"""Where deployed flows may write: folders, separated as in PATH; unset = the worker's `runs/`."""


@dataclass(frozen=True)
class Place:
    """A file or folder that a flow leaves in its folder: read from a `FlowDir`, it is the path there."""

    name: str
    kind: Literal["file", "folder"] = "file"

    def __get__(self, flow_dir: "FlowDir", owner: type) -> Path:
        """Return where it is."""
        return flow_dir.path / self.name


def places(names: Mapping[str, object], kind: str) -> tuple[str, ...]:
    """Return the names in a folder of the files, or folders, among the attributes of a class."""
    return tuple(place.name for place in names.values() if isinstance(place, Place) and place.kind == kind)


@dataclass(frozen=True)
class FlowDir:
    """Paths of what a flow leaves in its folder."""

    path: Path

    what: ClassVar[str] = "folder"
    """What messages call it."""
    option: ClassVar[str] = "--run-dir"
    """What names another one on the command line."""
    kinds: ClassVar[tuple[str, ...]] = ("run", "evaluation", "reproduction", "sweep")
    """What a marker in it may say."""
    subfolders: ClassVar[tuple[str, ...]] = ()
    """Folders that are written and removed in it."""
    lock_file = Place("lock")
    """Locked by the flow that works here."""
    flow_run_file = Place("flow_run")
    """Id of the Prefect flow run that made the folder: its retries continue here."""
    tracking_file = Place("tracking.json")
    """Where the run or sweep is tracked: MLflow's store and run id."""

    files: ClassVar[tuple[str, ...]] = (MARKER_FILE, *places(vars(), "file"))
    """Files that are written in it."""

    def marker(self) -> Marker | None:
        """Return what marks the folder as ours; None where it is not."""
        return read_marker(self.path)

    def mark(self, kind: Kind) -> None:
        """Make the folder, or take one that is empty or ours, and mark it with what it holds from now on.

        Raises:
            FolderError: it is a file, holds anything that is not ours, or cannot be made; nothing was changed in it.
        """
        refuse_special_place(self.path, self.what)
        where, remedy = f"{self.what} {self.path}", f"give another {self.option}"
        with (
            raised_as(FolderError, f"{where}: cannot be written ({{cause}}); {remedy}", OSError),
            raised_as(FolderError, f"{where}: is a file; {remedy}", FileExistsError),
        ):
            self.path.mkdir(parents=True, exist_ok=True)
            marker = self.marker()
            names = [] if marker is not None else foreign_entries(self.path)
            if names:
                raise FolderError(
                    f"{where}: is neither empty nor a folder of grpo-flow (it has no {MARKER_FILE}); it holds "
                    f"{few_names(names, 4)}. Nothing was changed; give a new folder as {self.option}, or leave it out"
                )
            self._refuse_kind(marker)
            if marker is None or marker.kind != kind:
                write_marker(self.path, kind)

    def _refuse_kind(self, marker: Marker | None) -> None:
        if marker is not None and marker.kind not in self.kinds:
            raise FolderError(f"{self.what} {self.path}: is the folder of a {marker.kind}; give another {self.option}")

    def require_ours(self) -> None:
        """Refuse to write into a folder that is not ours.

        Raises:
            FolderError: it is not ours; nothing was changed in it.
        """
        marker = self.marker()
        self._refuse_kind(marker)
        if marker is None:
            raise FolderError(
                f"{self.what} {self.path}: is no folder of grpo-flow: it has no {MARKER_FILE}. Nothing was changed"
            )

    def open_lock(self) -> IO[bytes]:
        """Open the lock file, to be locked.

        Raises:
            FolderError: it cannot be opened.
        """
        with raised_as(FolderError, f"{self.what} {self.path}: cannot be written ({{cause}})", OSError):
            return open_lock(self.lock_file)


_started: dict[Path, IO[bytes]] = {}
"""Locks of folders in which this process has begun a start, until `holding` takes them over."""


def make_folder(name: str, root: Path = RUNS_FOLDER) -> Path:
    """Make a folder below `root` that nobody else has, named after the time and `name`: two runs may start in the same second.

    Raises:
        JournalError: nothing can be made below `root`.
    """
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    while True:
        path = root / f"{stamp}-{name}{next(suffixes)}"
        with (
            raised_as(JournalError, f"{root.resolve()}: no folder can be made in it ({{cause}})", OSError),
            contextlib.suppress(FileExistsError),
        ):
            path.mkdir(parents=True)
            return path


@contextlib.contextmanager
def starting(flow_dir: FlowDir, kind: Kind) -> Iterator[None]:
    """Mark a folder as ours and hold its lock; where what is inside fails, the lock is freed, else `holding` takes it over.

    Raises:
        FolderError: the folder is not ours, or another flow starts or works in it.
    """
    flow_dir.mark(kind)
    with contextlib.ExitStack() as unless_started:
        lock = unless_started.enter_context(_locked(flow_dir))
        yield
        unless_started.pop_all()
    _started[flow_dir.path.resolve()] = lock


@contextlib.contextmanager
def holding(flow_dir: FlowDir) -> Iterator[None]:
    """Keep every other flow out of a folder while inside; it must be ours.

    Raises:
        FolderError: the folder is not ours, or another flow works in it.
    """
    flow_dir.require_ours()
    with _started.pop(flow_dir.path.resolve(), None) or _locked(flow_dir):
        yield


def _locked(flow_dir: FlowDir) -> IO[bytes]:
    noun = flow_dir.what.removesuffix(" dir")
    refusal = f"{flow_dir.what} {flow_dir.path}: {{holder}} works on this {noun}; wait for it, or end it first"
    return locked_soon(flow_dir.open_lock(), FolderError, refusal)


def allowed_roots(setting: str | None) -> tuple[Path, ...]:
    """Return the folders below which deployed flows may write.

    Args:
        setting: of GRPO_RUN_ROOTS: folders, separated as in PATH; None or empty = `runs/` of the working directory.
    """
    return tuple(Path(part).expanduser() for part in (setting or "").split(os.pathsep) if part) or (RUNS_FOLDER,)


def refuse_foreign_root(path: Path, roots: Sequence[Path], parameter: str = "run_dir") -> None:
    """Refuse a folder that does not lie below one of the roots, `..` and links resolved.

    >>> refuse_foreign_root(Path("runs/one"), [Path("runs")])
    >>> refuse_foreign_root(Path("runs/../src"), [Path("runs")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    grpo_core.errors.FolderError: run_dir runs/../src: is not below ...

    Args:
        path: the folder; need not exist.
        roots: where flows may write.
        parameter: what the folder was given as, for the message.

    Raises:
        FolderError: it is not below any of them.
    """
    resolved = path.resolve()
    if not any(root.resolve() in resolved.parents for root in roots):
        names = " or ".join(str(root.resolve()) for root in roots)
        raise FolderError(
            f"{parameter} {path}: is not below {names}, where deployed flows may write; choose a folder there, or let the "
            f"worker's owner add its parent to {ROOTS_VARIABLE} (folders separated by {os.pathsep!r}) and restart the worker"
        )
