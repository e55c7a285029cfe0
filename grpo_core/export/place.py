"""The folder of an export: written beside its name, flushed and renamed, in the place of an earlier export that nobody changed.

NAME/                 the export; its manifest lists every file with its SHA-256
.NAME.partial/        the one that is being written, and the earlier one from the exchange on; the next export removes it
.NAME.lock            held while one is written; removed at its end
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from grpo_core.errors import FolderError, few_names, raised_as
from grpo_core.machine.disk import exchange, flush, flush_all, free_bytes, remove, sha256_of, whole_or_gone
from grpo_core.machine.jsonfile import read_json, write_json
from grpo_core.machine.locks import locked_soon, open_lock
from grpo_core.machine.marker import MARKER_FILE, Kind, foreign_entries, read_marker, refuse_special_place, write_marker
from grpo_core.run.disk_need import refuse_too_little, shown_bytes

KIND: Kind = "export"
MANIFEST_FILE = "grpo_export.json"
OTHER = "give another --to"
SHOWN_FILES = 4


@contextlib.contextmanager
def placed_whole(target: Path, facts: Mapping[str, Any], need: int) -> Iterator[Path]:
    """Yield an empty folder beside `target`; what is inside fills it, and at the end it takes the target's place.

    Where what is inside fails, nothing is left of it, and the target is as it was.

    Args:
        target: the export; may lie behind a link.
        facts: that its manifest holds, beside its files.
        need: bytes that will be written.

    Raises:
        FolderError: the target is not an export of ours, was changed since, cannot be written, or another export is writing it.
        DiskFullError: the disk is full; `JournalError` where that is known beforehand.
    """
    refuse_special_place(target, "export folder")
    place = target.resolve()
    unwritable = f"export folder {target}: cannot be written ({{cause}}); {OTHER}"
    with raised_as(FolderError, unwritable, OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with _only_writer(place):
            refuse_other(place)
            _clear_leftovers(place)
            _require_room(place, need)
            scratch = _beside(place, "partial")
            with whole_or_gone(f"export {place.name}", scratch):
                scratch.mkdir()
                write_marker(scratch, KIND)
                yield scratch
                write_json(scratch / MANIFEST_FILE, {**facts, "files": _digests(scratch)})
                flush_all(scratch)
                refuse_other(place)  # again: it took a while
            _exchange(scratch, place)


def refuse_other(place: Path) -> None:
    """Refuse a place that holds anything but an export of ours in which every file is as it was written.

    Raises:
        FolderError: names what it holds.
    """
    where = f"export folder {place}"
    if not place.exists():
        return
    if not place.is_dir():
        raise FolderError(f"{where}: is a file; {OTHER}")
    marker = read_marker(place)
    if marker is None:
        if names := foreign_entries(place):
            raise FolderError(
                f"{where}: is neither empty nor an export of grpo-flow (it has no {MARKER_FILE}); it holds "
                f"{few_names(names, SHOWN_FILES)}. Nothing was changed; {OTHER}"
            )
        return
    if marker.kind != KIND:
        raise FolderError(f"{where}: is the folder of a {marker.kind}; {OTHER}")
    if changed := changed_files(place):
        raise FolderError(
            f"{where}: is an earlier export that was changed since ({few_names(changed, SHOWN_FILES)}). Nothing was changed; "
            f"move it away, or {OTHER}"
        )


def changed_files(folder: Path) -> list[str]:
    """Return the files of an export that are not as it wrote them: changed, added or gone."""
    try:
        written = dict(read_json(folder / MANIFEST_FILE)["files"])
    except (OSError, ValueError, LookupError, TypeError):
        return [MANIFEST_FILE]
    found = _digests(folder)
    return sorted(name for name in {*written, *found} if written.get(name) != found.get(name))


def _digests(folder: Path) -> dict[str, str]:
    """Return {file: SHA-256} of everything in an export but its marker and manifest; a link has none of an export's."""
    names = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()}
    files = {name: path for name, path in names.items() if name not in (MARKER_FILE, MANIFEST_FILE)}
    return {name: "a link" if path.is_symlink() else sha256_of(path) for name, path in files.items()}


def _require_room(place: Path, need: int) -> None:
    free = free_bytes(place.parent)
    shown_free = "how much is free is not known" if free is None else f"{shown_bytes(free)} free"
    what = f"export folder {place}: needs {shown_bytes(need)}; {shown_free}"
    refuse_too_little(what, [(need, free)], ["name a --to on a larger disk"])


@contextlib.contextmanager
def _only_writer(place: Path) -> Iterator[None]:
    """Keep every other export out of a place; its lock file is gone afterwards."""
    file = _beside(place, "lock")
    refusal = f"export folder {place}: {{holder}} writes an export there; wait for it, or {OTHER}"
    lock = _locked(file, refusal)
    while not _is_at(file, lock):  # its earlier holder has removed it
        lock.close()
        lock = _locked(file, refusal)
    with lock:
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def _locked(file: Path, refusal: str) -> IO[bytes]:
    return locked_soon(open_lock(file), FolderError, refusal)


def _is_at(file: Path, lock: IO[bytes]) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False


def _clear_leftovers(place: Path) -> None:
    """Remove what a killed export left beside its place: its start, or the earlier export, which it had replaced."""
    leftover = _beside(place, "partial")
    if not _is_leftover(leftover):
        raise FolderError(f"{leftover}: is not the start of an export, and one needs this name; move it away, or {OTHER}")
    remove(leftover)


def _is_leftover(path: Path) -> bool:
    """Return whether a path is free, or holds what an export of ours has left there."""
    if path.is_symlink() or not path.exists():
        return not path.is_symlink()
    if not path.is_dir():
        return False
    marker = read_marker(path)
    return marker.kind == KIND if marker is not None else not foreign_entries(path)


def _exchange(scratch: Path, place: Path) -> None:
    """Put a whole export in its place: at every moment there is one, the earlier or the new one."""
    if not place.exists():
        os.replace(scratch, place)
    elif (fault := exchange(scratch, place)) is not None:
        remove(scratch)
        raise FolderError(f"export folder {place}: cannot be replaced in one step here ({fault}); remove it first, or {OTHER}")
    flush(place.parent)
    remove(scratch)  # the earlier one


def _beside(place: Path, suffix: str) -> Path:
    return place.with_name(f".{place.name}.{suffix}")
