"""What the folder of a run and that of a sweep have in common: each is marked as ours, held by one flow, and tracked.

The marker is `.grpo-folder`, one small JSON file. A folder is ours by its marker alone: other programs use names such as
`config.json`, `data/` and `checkpoints/`, too. Nothing is deleted or overwritten in a folder without one.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, ClassVar, Literal

from grpo_core.errors import FolderError, JournalError, few_names, raised_as
from grpo_core.machine.disk import flush, read_json, write_json
from grpo_core.machine.locks import locked_soon, open_lock

Kind = Literal["run", "evaluation", "reproduction", "sweep", "comparison", "export"]
MARKER_FILE = ".grpo-folder"
FORMAT = 2
NUMBERED, MOST_NUMBER = ("run", "reproduction", "sweep"), 10**9
RUNS_FOLDER = Path("runs")
ROOTS_VARIABLE = "GRPO_RUN_ROOTS"
"""Where deployed flows may write: folders, separated as in PATH; unset = the worker's `runs/`."""


@dataclass(frozen=True, kw_only=True)
class Marker:
    """What the marker of a folder holds: its kind, the version of its layout, and when it was made, in ISO-8601."""

    kind: str
    format: int = FORMAT
    created: str = ""
    number: int = 0
    """By which commands take it, among its neighbours: one more than the highest of them when it was made."""


def write_marker(folder: Path, kind: Kind) -> None:
    """Mark a folder as ours; marker and folder survive a power failure.

    Raises:
        OSError: it cannot be written.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    number = 1 + max(_numbers(folder.parent).values(), default=0) if kind in NUMBERED else 0
    write_json(folder / MARKER_FILE, asdict(Marker(kind=kind, created=created, number=number)))
    flush(folder.parent)


def refuse_special_place(path: Path, what: str) -> None:
    """Refuse places that are never a folder of our own: the root, the home, a `~` that no shell expanded.

    Args:
        path: the folder that is asked for.
        what: what it is to be, for the message: `run dir`.

    Raises:
        FolderError: it is one of them.
    """
    if path.parts and path.parts[0].startswith("~"):
        raise FolderError(f"{what} {path}: `~` is not expanded here; give the whole path")
    if path.resolve() in (Path("/"), Path(os.path.expanduser("~")).resolve()):  # noqa: PTH111  (of a user without a home)
        raise FolderError(f"{what} {path}: is the root or home folder; give a folder of its own")


@dataclass(frozen=True)
class Place:
    """A file or folder that a flow leaves in its folder: read from a `FlowDir`, it is the path there."""

    name: str

    def __get__(self, flow_dir: "FlowDir", owner: type) -> Path:
        """Return where it is."""
        return flow_dir.path / self.name


@dataclass(frozen=True)
class FlowDir:
    """Paths of what a flow leaves in its folder.

    `lock_file` is locked by the flow that works here; `flow_run_file` holds the id of the Prefect flow run that made the folder
    and whose retries continue here; `tracking_file` says where the run or sweep is tracked: MLflow's store and run id. Messages
    call the folder `what` and name the `option` that gives another one; its marker says one of `kinds`.
    """

    path: Path

    what: ClassVar[str] = "folder"
    option: ClassVar[str] = "--run-dir"
    kinds: ClassVar[tuple[str, ...]] = ("run", "evaluation", "reproduction", "sweep")
    lock_file = Place("lock")
    flow_run_file = Place("flow_run")
    tracking_file = Place("tracking.json")

    def marker(self) -> Marker | None:
        """Return what marks the folder as ours; None where there is no marker, or a file that is none of ours.

        Raises:
            FolderError: another version made the folder.
        """
        try:
            facts = read_json(self.path / MARKER_FILE)
            if facts.get("format", FORMAT) == FORMAT:
                return Marker(**facts)
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        version = f"format {facts['format']}, this version reads {FORMAT}"
        raise FolderError(f"{self.path}: made by another version of grpo-flow ({version})")

    @property
    def kind(self) -> str | None:
        """What the marker says that it holds; None where the folder is not ours."""
        marker = self.marker()
        return None if marker is None else marker.kind

    def mark(self, kind: Kind) -> None:
        """Make the folder, or take one that is empty or ours, and mark it with what it holds from now on.

        Raises:
            FolderError: it is a file, holds anything that is not ours, or cannot be made; nothing was changed in it.
        """
        refuse_special_place(self.path, self.what)
        where, remedy = f"{self.what} {self.path}", f"give another {self.option}"
        with raised_as(FolderError, f"{where}: cannot be written ({{cause}}); {remedy}", OSError):
            self.path.mkdir(parents=True, exist_ok=True)
            if self.kind is not None:
                self.require_ours()
            elif names := sorted(path.name for path in self.path.iterdir()):
                raise FolderError(
                    f"{where}: is neither empty nor a folder of grpo-flow (it has no {MARKER_FILE}); it holds "
                    f"{few_names(names, 4)}. Nothing was changed; give a new folder as {self.option}, or leave it out"
                )
            if self.kind != kind:
                write_marker(self.path, kind)

    def require_ours(self) -> None:
        """Refuse to write into a folder that is not ours.

        Raises:
            FolderError: it is not ours; nothing was changed in it.
        """
        if self.kind not in self.kinds:
            fault = f"is the folder of a {self.kind}; give another {self.option}"
            none = f"is no folder of grpo-flow: it has no {MARKER_FILE}. Nothing was changed"
            raise FolderError(f"{self.what} {self.path}: {none if self.kind is None else fault}")

    def locked(self) -> IO[bytes]:
        """Return the lock file, locked until it is closed: nobody else works in the folder, which must be ours.

        Raises:
            FolderError: the folder is not ours, cannot be written, or another flow works in it.
        """
        self.require_ours()
        refusal = f"{self.what} {self.path}: {{holder}} works on this {self.what.removesuffix(' dir')}; wait for it, or end it"
        with raised_as(FolderError, f"{self.what} {self.path}: cannot be written ({{cause}})", OSError):
            return locked_soon(open_lock(self.lock_file), FolderError, f"{refusal} first")


def mlflow_run_id(flow_dir: FlowDir) -> str | None:
    """Return the id of a run or sweep in MLflow; None where it has none that can be read: a store may name any folder."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        return str(read_json(flow_dir.tracking_file)["run_id"])
    return None


def named_folder(name: str) -> str:
    """Return the path that a user means by a number of `grpo runs` or by `last`, the newest run or sweep, also with `@STEP`.

    Any other text, and the name of what is there, is itself the path.

    Raises:
        FolderError: no folder in `runs/` has that number, or several have.
    """
    short, at, step = name.partition("@")
    if re.fullmatch(r"last|\d{1,9}", short) is None or Path(name).exists() or Path(short).exists():
        return name
    numbers = _numbers(RUNS_FOLDER)
    if short == "last":
        numbers = dict(sorted(numbers.items(), key=lambda one: (one[1], one[0]))[-1:])
    found = [str(path) for path, number in numbers.items() if short in ("last", str(number))]
    if len(found) != 1:
        what = f"is the number of {' and '.join(found)}" if found else f"{RUNS_FOLDER}/ has no such run"
        raise FolderError(f"{short}: {what}; give a folder, `last` or a number that `grpo runs` lists")
    return f"{found[0]}{at}{step}"


def _numbers(root: Path) -> dict[Path, int]:
    """Return the numbers of the runs and sweeps below `root`."""
    numbers = {}
    for path in sorted(root.glob(f"*/{MARKER_FILE}")):
        with contextlib.suppress(FolderError):  # another version's
            marker = FlowDir(path.parent).marker()
            # Beside a folder outside of `runs/` may be those of others.
            if marker and marker.kind in NUMBERED and type(marker.number) is int and 0 < marker.number < MOST_NUMBER:
                numbers[path.parent] = marker.number
    return numbers


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
