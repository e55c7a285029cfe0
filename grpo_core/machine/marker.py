"""The marker of a folder that we made: `.grpo-folder`, one small JSON file.

A folder is ours by its marker alone: other programs use names such as `config.json`, `data/` and `checkpoints/`, too.
Nothing is deleted or overwritten in a folder without one.
"""

import contextlib
import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from grpo_core.errors import FolderError
from grpo_core.machine.disk import flush
from grpo_core.machine.jsonfile import STORED, build, read_json, write_json

Kind = Literal["run", "evaluation", "reproduction", "sweep", "comparison", "export"]
MARKER_FILE = ".grpo-folder"
FORMAT = 2


@dataclass(frozen=True, kw_only=True, config=STORED)
class Marker:
    """What the marker of a folder holds."""

    kind: str
    """One of `Kind`."""
    format: int = FORMAT
    """Version of the folder's layout."""
    created: str = ""
    """When the marker was written: ISO-8601 with time zone."""


def read_marker(folder: Path) -> Marker | None:
    """Return the marker of a folder; None where there is none, or a file that is no marker of ours.

    Raises:
        FolderError: another version made the folder.
    """
    try:
        facts = read_json(folder / MARKER_FILE)
        if isinstance(facts, dict) and facts.get("format", FORMAT) != FORMAT:
            raise FolderError(
                f"{folder}: made by another version of grpo-flow (format {facts['format']}, this version reads {FORMAT})"
            )
        return build(Marker, facts)
    except (OSError, ValueError):
        return None


def write_marker(folder: Path, kind: Kind) -> None:
    """Mark a folder as ours; marker and folder survive a power failure.

    Raises:
        OSError: it cannot be written.
    """
    write_json(folder / MARKER_FILE, asdict(Marker(kind=kind, created=datetime.now(UTC).isoformat(timespec="seconds"))))
    with contextlib.suppress(PermissionError):  # of somebody else's, in which others may make folders
        flush(folder.parent)


def foreign_entries(folder: Path) -> list[str]:
    """Return the names in a folder that has no marker."""
    return sorted(os.listdir(folder))  # noqa: PTH208  (names alone)


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
