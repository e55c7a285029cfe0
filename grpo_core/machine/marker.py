"""The marker of a folder that we made: `.grpo-folder`, one small JSON file.

A folder is ours by its marker alone: other programs use names such as `config.json`, `data/` and `checkpoints/`, too.
Nothing is deleted or overwritten in a folder without one.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from grpo_core.errors import FolderError, name_of, shown
from grpo_core.machine.jsonfile import STORED, Count, build, read_json, write_json

Kind = Literal["run", "evaluation", "reproduction", "sweep"]
MARKER_FILE = ".grpo-folder"
FORMAT = 1
NAMED_ENTRIES = 4
"""How many entries of a folder a message names."""


@dataclass(frozen=True, kw_only=True, config=STORED)
class Marker:
    """What the marker of a folder holds."""

    kind: str
    """`run`, `evaluation`, `reproduction` or `sweep`."""
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


def write_marker(folder: Path, kind: Kind, *, adopted: bool = False) -> None:
    """Mark a folder as ours; of two that do it at the same moment, one writes and the other finds the marker.

    Raises:
        OSError: it cannot be written.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"kind": kind, "format": FORMAT, "created": now, "adopted": int(adopted)}
    file = folder / MARKER_FILE
    try:
        # O_EXCL: not through a link, and not over what another start has just written.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        if read_marker(folder) is None:  # a start was killed between two system calls and left it empty
            write_json(file, facts)
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(facts) + "\n")


def foreign_entries(folder: Path) -> list[str]:
    """Return the names in a folder, without an unreadable marker and the lock of a start that was killed at once."""
    return sorted(name for name in os.listdir(folder) if not _is_of_a_start(folder / name))  # noqa: PTH208  (names alone)


def _is_of_a_start(path: Path) -> bool:
    return path.name in (MARKER_FILE, "lock") and not path.is_symlink() and path.is_file() and path.stat().st_size == 0


def describe_entries(names: Iterable[str]) -> str:
    """Return what a folder holds, for a message.

    >>> describe_entries(["a", "b", "c", "d", "e", "f"])
    'a, b, c, d and 2 more'
    """
    names = list(names)
    more = f" and {len(names) - NAMED_ENTRIES} more" if len(names) > NAMED_ENTRIES else ""
    return ", ".join(name_of(name) for name in names[:NAMED_ENTRIES]) + more


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
    home: Path | None = None
    with contextlib.suppress(RuntimeError):  # a user without one
        home = Path.home().resolve()
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


def refuse_links(folder: Path, what: str, subfolders: Iterable[str], names: Iterable[str]) -> None:
    """Refuse a folder in which something that is written or removed there is a link to elsewhere.

    Args:
        folder: of a run or a sweep.
        what: what it is, for the message.
        subfolders: what is a folder of our own in it; no entry of these is a link, either.
        names: files that are written in it.

    Raises:
        FolderError: names the first link and where it points.
    """
    inside = [path for name in subfolders for path in _entries(folder / name)]
    for path in (*(folder / name for name in (*subfolders, *names)), *folder.glob("*.log"), *inside):
        if path.is_symlink():
            where = shown(os.readlink(path), most=300)  # noqa: PTH115  (as it is written)
            raise FolderError(
                f"{what} {folder}: {path.relative_to(folder)} is a link to {where}, and what is written there would "
                "land outside of the folder; put the folder or file itself in its place (the whole run may lie behind a link)"
            )


def _entries(folder: Path) -> list[Path]:
    return [] if folder.is_symlink() or not folder.is_dir() else list(folder.iterdir())
