"""What can be removed from folders that we made, and its removal: `grpo clean`.

Only folders with our marker are looked into, only things with names that we give are listed, and nothing of a run that is under
way. The newest and the best checkpoint of a run always stay.
"""

import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_core.errors import FolderError, GrpoError, cause
from grpo_core.machine.disk import PARTIAL, folder_bytes, remove
from grpo_core.machine.locks import lock_holder, try_lock
from grpo_core.machine.marker import MARKER_FILE
from grpo_core.policy.saved import MANIFEST_FILE, find_best, list_checkpoints, list_leftovers
from grpo_core.run.flow_folder import FlowDir
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_journal
from grpo_core.run.journal import last_event
from grpo_core.run.repair import ASIDE
from grpo_core.run.used import places_of, used_checkpoints

KINDS = {
    "checkpoints": "checkpoints of runs that have ended, other than the newest and the best",
    "leftovers": "checkpoints and files that a killed process left half-written or half-removed",
    "damaged": "checkpoints that a resume found damaged, or that a repaired journal does not reach: set aside",
    "starts": "folders of runs, evaluations and sweeps that never began",
}
"""What can go, by the name with which it is chosen."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One file or folder that can go."""

    kind: str
    path: Path
    folder: Path
    """The run's."""
    bytes: int
    age_seconds: float
    """Since it was last changed."""
    note: str = ""
    """What is not possible without it."""


@dataclass(frozen=True, kw_only=True)
class Removable:
    """What can go, and what was passed over."""

    items: tuple[Item, ...]
    skipped: tuple[str, ...]
    """Folders that were not looked into, each with the reason."""


def find_items(folder: Path, kinds: Collection[str] = tuple(KINDS), runs: Collection[Path] = ()) -> Removable:
    """Return what can go of the runs in a folder, which may itself be that of a run or a sweep.

    Args:
        folder: usually `runs`.
        kinds: of KINDS.
        runs: only of these folders; empty = of all.

    Raises:
        FolderError: a folder of `runs` is not ours.
    """
    chosen = [FlowDir(path) for path in runs] or list(_flow_dirs(folder))
    for flow_dir in chosen if runs else ():
        if flow_dir.marker() is None:
            raise FolderError(f"{flow_dir.path}: has no {MARKER_FILE}, so nothing in it is removed")
    used = used_checkpoints({folder, *(place for flow_dir in chosen for place in places_of(flow_dir.path))})
    items, skipped = list[Item](), list[str]()
    for flow_dir in chosen:
        try:
            _refuse_busy(flow_dir)
        except GrpoError as error:
            skipped.append(f"{flow_dir.path}: {cause(error)}")
            continue
        for item in (item for item in _items(flow_dir) if item.kind in kinds):
            user = used.get(item.path.resolve())
            if user is None:
                items.append(item)
            else:
                skipped.append(f"{item.path}: it is the {user[0]} of {user[1]}, which cannot be reproduced without it")
    older = 0 if runs else sum(1 for path in folder.glob("*/journal.jsonl") if not _is_marked(FlowDir(path.parent)))
    if older:
        skipped.append(f"{older} folder(s) of runs of an older version in {folder}: they have no {MARKER_FILE}")
    return Removable(items=tuple(items), skipped=tuple(skipped))


def remove_items(items: Collection[Item]) -> list[str]:
    """Remove what was listed, each under the lock of its folder and only if it can still go; return what was left, and why."""
    left = list[str]()
    for folder in dict.fromkeys(item.folder for item in items):
        flow_dir = FlowDir(folder)
        wanted = [item for item in items if item.folder == folder]
        try:
            _refuse_busy(flow_dir)
            with flow_dir.open_lock() as lock:
                if not try_lock(lock):
                    raise FolderError("a flow has begun to work in it")
                still = {item.path for item in _items(flow_dir)}
                left += [f"{item.path}: it has changed" for item in wanted if item.path not in still]
                for item in (item for item in wanted if item.path in still):
                    _remove(item)
        except (GrpoError, OSError) as error:
            left.append(f"{folder}: {cause(error)}")
    return left


def _refuse_busy(flow_dir: FlowDir) -> None:
    """Refuse to remove anything of a folder that is not ours, is under way, or holds links out of it.

    Raises:
        GrpoError: says why, without naming the folder.
    """
    if flow_dir.marker() is None:
        raise FolderError(f"it has no {MARKER_FILE}")
    run_dir = RunDir(flow_dir.path)
    holder = lock_holder(flow_dir.lock_file) or lock_holder(run_dir.journal_file)
    if holder is not None:
        raise FolderError(f"{holder} works on it")


def _flow_dirs(folder: Path) -> Iterator[FlowDir]:
    """Yield the folders with our marker: this one, or those in it, and the runs of each sweep."""
    here, inside = FlowDir(folder), folder
    if _is_marked(here):
        yield here
        inside = folder / "runs"
    for path in sorted(inside.iterdir()) if inside.is_dir() else ():
        if path.is_dir() and not path.is_symlink() and _is_marked(FlowDir(path)):
            yield from _flow_dirs(path)


def _is_marked(flow_dir: FlowDir) -> bool:
    file = flow_dir.path / MARKER_FILE
    return file.is_file() and not file.is_symlink()


def _items(flow_dir: FlowDir) -> Iterator[Item]:
    run_dir = RunDir(flow_dir.path)
    checkpoints = run_dir.checkpoints
    if _never_began(flow_dir):
        if _is_all_ours(flow_dir):
            yield _item("starts", flow_dir.path, flow_dir.path)
        return
    whole = list_checkpoints(checkpoints) if _needs_no_earlier_checkpoint(run_dir) else []
    older = [path for path in whole[:-1] if path != find_best(checkpoints)]
    for kind, paths, note in (
        ("leftovers", dict.fromkeys((*list_leftovers(checkpoints), *_partials(run_dir))), ""),
        ("damaged", checkpoints.glob("damaged_step_*"), "it can no longer be examined"),
        ("damaged", checkpoints.glob(f"{ASIDE}step_*"), "the repair of the journal can no longer be undone"),
        ("checkpoints", older, "a resume falls back on it if the newest is damaged; its policy can be evaluated"),
    ):
        for path in paths:
            yield _item(kind, path, run_dir.path, note)


def _partials(run_dir: RunDir) -> Iterator[Path]:
    """Yield what a killed process was writing, in a run's folder and its subfolders; a sweep's runs have their own."""
    yield from run_dir.path.glob(f".*{PARTIAL}")
    for name in RunDir.subfolders:
        yield from (run_dir.path / name).rglob(f".*{PARTIAL}")


def _needs_no_earlier_checkpoint(run_dir: RunDir) -> bool:
    """Return whether a run has come to its end and needs no checkpoint before the newest; False where that is not sure."""
    try:
        last = last_event(check_journal(run_dir).history)
    except GrpoError:  # a damaged one, or another run's: its repair may need an earlier checkpoint
        return False
    return last is not None and last.kind == "end" and last.data.get("status") in ("finished", "stopped")


def _never_began(flow_dir: FlowDir) -> bool:
    begun = (flow_dir.path / name for name in ("journal.jsonl", "checkpoints", "sweep.json"))
    return not any(path.exists() for path in begun) and not any((flow_dir.path / "runs").glob("*"))


def _is_all_ours(flow_dir: FlowDir) -> bool:
    """Return whether everything in the folder of a start has a name that we give, and the marker was there first."""
    marker, ours = flow_dir.marker(), {*RunDir.files, *RunDir.subfolders, "runs"}
    return marker is not None and all(
        path.name in ours or path.name.endswith((".log", ".partial")) for path in flow_dir.path.iterdir()
    )


def _item(kind: str, path: Path, folder: Path, note: str = "") -> Item:
    return Item(
        kind=kind,
        path=path,
        folder=folder,
        bytes=folder_bytes(path) if path.is_dir() else path.lstat().st_size,
        age_seconds=max(0.0, time.time() - path.lstat().st_mtime),
        note=note,
    )


def _remove(item: Item) -> None:
    """Remove a file or folder; a checkpoint's manifest and a run's marker go in an order that leaves nothing misleading."""
    if not item.path.is_dir():
        item.path.unlink()
        return
    if item.kind == "starts":
        for path in item.path.iterdir():
            if path.name not in (MARKER_FILE, "lock"):
                remove(path)
    else:
        (item.path / MANIFEST_FILE).unlink(missing_ok=True)  # what a kill leaves must not pass for a whole checkpoint
    shutil.rmtree(item.path)
