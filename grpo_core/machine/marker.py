"""The marker of a folder that we made: `.grpo-folder`, one small JSON file.

A folder is ours by its marker alone: other programs use names such as `config.json`, `data/` and `checkpoints/`, too.
Nothing is deleted or overwritten in a folder without one.
"""

import contextlib
import json
import os
import time
from collections.abc import Collection
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from grpo_core.errors import FolderError, shown
from grpo_core.machine.disk import flush
from grpo_core.machine.jsonfile import STORED, Count, build, read_json, write_json

Kind = Literal["run", "evaluation", "reproduction", "sweep", "comparison", "export"]
MARKER_FILE = ".grpo-folder"
FORMAT = 1


@dataclass(frozen=True, kw_only=True, config=STORED)
class Marker:
    """What the marker of a folder holds."""

    kind: str
    """`run`, `evaluation`, `reproduction`, `sweep`, `comparison` or `export`."""
    format: Count = FORMAT
    """Version of the folder's layout."""
    created: str = ""
    """When the marker was written: ISO-8601 with time zone."""
    adopted: Count = 0
    """1 where the folder was there before its marker: made by a version that wrote none, or by hand."""


def read_marker(folder: Path) -> Marker | None:
    """Return the marker of a folder; None where there is none, or a file that is no marker of ours.

    Raises:
        FolderError: a newer version made the folder.
    """
    file = folder / MARKER_FILE
    if file.is_symlink():
        return None
    try:
        facts = read_json(file)
        if isinstance(facts, dict) and isinstance(facts.get("format"), int) and facts["format"] > FORMAT:
            raise FolderError(
                f"{folder}: a newer version of grpo-flow made this folder (format {facts['format']}, this one knows {FORMAT}); "
                "update grpo-flow"
            )
        return build(Marker, facts)
    except (OSError, ValueError):
        return None


WRITING_SECONDS = 0.5
"""After which a marker that is empty is nobody's who is just writing it."""


def write_marker(folder: Path, kind: Kind, *, adopted: bool = False) -> None:
    """Mark a folder as ours; of two that do it at the same moment, one writes and the other finds the marker.

    Raises:
        OSError: it cannot be written.
    """
    facts = asdict(Marker(kind=kind, created=datetime.now(UTC).isoformat(timespec="seconds"), adopted=int(adopted)))
    file = folder / MARKER_FILE
    try:
        # O_EXCL: not through a link, and not over what another start has just written.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        deadline = time.monotonic() + WRITING_SECONDS
        while read_marker(folder) is None:
            if time.monotonic() > deadline:  # a start was killed between two system calls and left it empty
                write_json(file, facts)
            time.sleep(0.01)
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(facts) + "\n")
    for path in (file, folder):
        flush(path)
    with contextlib.suppress(PermissionError):  # of somebody else's, in which others may make folders
        flush(folder.parent)


def foreign_entries(folder: Path) -> list[str]:
    """Return the names in a folder, without an unreadable marker and the lock of a start that was killed at once."""
    return sorted(name for name in os.listdir(folder) if not _is_of_a_start(folder / name))  # noqa: PTH208  (names alone)


def _is_of_a_start(path: Path) -> bool:
    return path.name in (MARKER_FILE, "lock") and not path.is_symlink() and path.is_file() and path.stat().st_size == 0


def refuse_special_place(path: Path, what: str) -> None:
    """Refuse places that are never a folder of our own: the root, the home, a `~` that no shell expanded, a run's inside.

    Args:
        path: the folder that is asked for.
        what: what it is to be, for the message: `run dir`.

    Raises:
        FolderError: it is one of them.
    """
    if path.parts and path.parts[0].startswith("~"):
        raise FolderError(f"{what} {path}: `~` is not expanded here; give the whole path")
    resolved = path.resolve()
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111  (a user without one is no error to it)
    if resolved == Path(resolved.anchor) or resolved == home:
        raise FolderError(f"{what} {path}: is the {'home' if resolved == home else 'root'} folder; give a folder of its own")
    for parent in resolved.parents:
        if _is_run(parent):
            raise FolderError(f"{what} {path}: lies inside the run {parent}, which may remove it; give a folder outside of it")


def _is_run(folder: Path) -> bool:
    """Return whether a folder is a run's, also an older one without a marker."""
    if (folder / MARKER_FILE).is_file():
        marker = read_marker(folder)
        return marker is not None and marker.kind != "sweep"
    return all((folder / name).is_file() for name in ("config.json", "origin.json", "journal.jsonl"))


def refuse_links(folder: Path, what: str, subfolders: Collection[str], names: Collection[str]) -> None:
    """Refuse a folder in which something that is written or removed there is a link to elsewhere.

    Args:
        folder: of a run or a sweep.
        what: what it is, for the message.
        subfolders: what is a folder of our own in it; no entry of these is a link, either.
        names: files that are written in it.

    Raises:
        FolderError: names the first link and where it points.
    """
    ours = [folder / name for name in subfolders]
    inside = (path for place in ours if place.is_dir() and not place.is_symlink() for path in place.iterdir())
    for path in (*ours, *(folder / name for name in names), *folder.glob("*.log"), *inside):
        if path.is_symlink():
            where = shown(os.readlink(path), most=300)  # noqa: PTH115  (as it is written)
            raise FolderError(
                f"{what} {folder}: {path.relative_to(folder)} is a link to {where}, and what is written there would "
                "land outside of the folder; put the folder or file itself in its place (the whole run may lie behind a link)"
            )
