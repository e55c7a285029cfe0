"""The folder of an export: written beside its name and renamed, in the place of an earlier export that nobody changed.

NAME/                 the export; its manifest lists every file with its SHA-256
.NAME.partial/        the one that is being written, its marker locked; the next export removes what a kill has left
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_core.errors import FolderError, few_names, raised_as
from grpo_core.machine.disk import exchange, flush, flush_all, remove, sha256_of, whole_or_gone
from grpo_core.machine.jsonfile import read_json, write_json
from grpo_core.machine.locks import lock_holder, try_lock
from grpo_core.run.flow_folder import MARKER_FILE, FlowDir, Kind, refuse_special_place, write_marker

KIND: Kind = "export"
MANIFEST_FILE = "grpo_export.json"
OTHER = "Nothing was changed; move it away, or give another --to"
SHOWN_FILES = 4


@contextlib.contextmanager
def placed_whole(target: Path, facts: Mapping[str, Any]) -> Iterator[Path]:
    """Yield an empty folder beside `target`; what is inside fills it, and at the end it takes the target's place.

    Where what is inside fails, nothing is left of it, and the target is as it was.

    Args:
        target: the export; may lie behind a link.
        facts: that its manifest holds, beside its files.

    Raises:
        FolderError: the target is not an export of ours, was changed since, cannot be written, or another export is writing it.
        DiskFullError: the disk is full.
    """
    refuse_special_place(target, "export folder")
    place = target.resolve()
    scratch = place.with_name(f".{place.name}.partial")
    unwritable = f"export folder {target}: cannot be written ({{cause}}); give another --to"
    with raised_as(FolderError, unwritable, OSError):
        refuse_other(place)
        _require_ours(scratch)
        if holder := lock_holder(scratch / MARKER_FILE):
            raise FolderError(f"export folder {place}: {holder} writes an export there; wait for it")
        remove(scratch)
        with whole_or_gone(f"export {place.name}", scratch):
            scratch.mkdir(parents=True)
            write_marker(scratch, KIND)
            with (scratch / MARKER_FILE).open("rb") as marker:
                try_lock(marker)
                yield scratch
                write_json(scratch / MANIFEST_FILE, {**facts, "files": _digests(scratch)})
                flush_all(scratch)
        refuse_other(place)  # again: it took a while
        if not place.exists():
            os.replace(scratch, place)
        elif fault := exchange(scratch, place):
            raise FolderError(f"export folder {place}: cannot be replaced in one step here ({fault}); remove it first")
        flush(place.parent)
        remove(scratch)  # the earlier one


def refuse_other(place: Path) -> None:
    """Refuse a place that holds anything but an export of ours in which every file is as it was written.

    Raises:
        FolderError: names what it holds.
    """
    _require_ours(place)
    if FlowDir(place).marker() is not None and (changed := changed_files(place)):
        raise FolderError(
            f"export folder {place}: is an earlier export that was changed since ({few_names(changed, SHOWN_FILES)}). {OTHER}"
        )


def _require_ours(folder: Path) -> None:
    if not folder.exists():
        return
    marker = FlowDir(folder).marker()
    if marker is None and (names := sorted(path.name for path in folder.iterdir())):
        raise FolderError(f"export folder {folder}: is no export; it holds {few_names(names, SHOWN_FILES)}. {OTHER}")
    if marker is not None and marker.kind != KIND:
        raise FolderError(f"export folder {folder}: is the folder of a {marker.kind}. {OTHER}")


def changed_files(folder: Path) -> list[str]:
    """Return the files of an export that are not as it wrote them: changed, added or gone."""
    try:
        written = dict(read_json(folder / MANIFEST_FILE)["files"])
    except (OSError, ValueError, LookupError, TypeError):
        return [MANIFEST_FILE]
    found = _digests(folder)
    return sorted(name for name in {*written, *found} if written.get(name) != found.get(name))


def _digests(folder: Path) -> dict[str, str]:
    """Return {file: SHA-256} of everything in an export but its marker and manifest."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: sha256_of(path) for name, path in files.items() if name not in (MARKER_FILE, MANIFEST_FILE)}
