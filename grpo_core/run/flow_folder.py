"""What the folder of a run and the folder of a sweep have in common: each is marked, held and tracked by one flow."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, ClassVar, Literal

from grpo_core.errors import FolderError
from grpo_core.machine.jsonfile import write_json
from grpo_core.machine.marker import (
    MARKER_FILE,
    Kind,
    Marker,
    describe_entries,
    foreign_entries,
    read_marker,
    refuse_links,
    refuse_special_place,
    write_marker,
)


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
        """Make the folder, or take an empty one, and mark it as ours; one that is marked already stays as it is.

        Raises:
            FolderError: it is a file, holds anything that is not ours, or cannot be made; nothing was changed in it.
        """
        refuse_special_place(self.path, self.what)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            marker = self.marker()
            if marker is None:
                self._refuse_foreign()
                write_marker(self.path, kind)
        except FileExistsError as error:
            raise FolderError(f"{self.what} {self.path}: is a file; give another {self.option}") from error
        except OSError as error:
            cause = f"cannot be written ({error.strerror})"
            raise FolderError(f"{self.what} {self.path}: {cause}; give another {self.option}") from error
        self._refuse_kind(marker)
        self.refuse_links()

    def set_kind(self, kind: Kind) -> None:
        """Say in the marker what a folder of ours holds from now on: another kind of start in it may have come to nothing.

        Raises:
            OSError: it cannot be written.
        """
        marker = self.marker()
        if marker is not None and marker.kind != kind:
            write_json(self.path / MARKER_FILE, asdict(replace(marker, kind=kind)))

    def _refuse_foreign(self) -> None:
        names = foreign_entries(self.path)
        if names and self.marker() is None:  # looked for again: another start may have marked it before this list was made
            raise FolderError(
                f"{self.what} {self.path}: is neither empty nor a folder of grpo-flow (it has no {MARKER_FILE}); it holds "
                f"{describe_entries(names)}. Nothing was changed; give a new folder as {self.option}, or leave it out"
            )

    def _refuse_kind(self, marker: Marker | None) -> None:
        if marker is not None and marker.kind not in self.kinds:
            raise FolderError(f"{self.what} {self.path}: is the folder of a {marker.kind}; give another {self.option}")

    def require_ours(self) -> None:
        """Refuse to write into a folder that is not ours; one that a version without markers made is marked.

        Raises:
            FolderError: it is not ours, or holds links out of it; nothing was changed in it.
        """
        marker = self.marker()
        self._refuse_kind(marker)
        self.refuse_links()
        if marker is None:
            reason = self.why_not_older()
            if reason is not None:
                raise FolderError(
                    f"{self.what} {self.path}: is no folder of grpo-flow: it has no {MARKER_FILE}, and is not one of an older "
                    f"version ({reason}). Nothing was changed"
                )
            try:
                write_marker(self.path, self.older_kind(), adopted=True)
            except OSError as error:
                raise FolderError(f"{self.what} {self.path}: cannot be written ({error.strerror})") from error

    def why_not_older(self) -> str | None:
        """Return why a folder without a marker is none that an older version made; None where it is one."""
        return "it holds neither a run nor a sweep"

    def older_kind(self) -> Kind:
        """Return what a folder that an older version made holds."""
        return "run"

    def refuse_links(self) -> None:
        """Refuse links to elsewhere in the places where we write and remove.

        Raises:
            FolderError: names the link.
        """
        refuse_links(self.path, self.what, self.subfolders, self.files)

    def open_lock(self) -> IO[bytes]:
        """Open the lock file, to be locked; a link in its place is not followed.

        Raises:
            FolderError: it cannot be opened.
        """
        try:
            return os.fdopen(os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644), "r+b")
        except OSError as error:
            raise FolderError(f"{self.what} {self.path}: cannot be written ({error.strerror})") from error
