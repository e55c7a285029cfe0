"""What can be removed from folders that we made, and its removal: `grpo clean`.

Only folders with our marker are looked into, only things with names that we give are listed, and nothing of a run that is under
way. The newest and the best checkpoint of a run always stay, and those that other runs begin with.
"""

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
    "leftovers": "what a killed process left half-written or half-removed, and checkpoints that were set aside as damaged",
}
"""What can go, by the name with which it is chosen."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One file or folder that can go."""

    kind: str
    path: Path
    folder: Path
    """The run's."""

    @property
    def bytes(self) -> int:
        """Its size."""
        return folder_bytes(self.path) if self.path.is_dir() else self.path.lstat().st_size


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
    """
    chosen = [FlowDir(path) for path in runs] or list(_flow_dirs(folder))
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
    return Removable(items=tuple(items), skipped=tuple(skipped))


def remove_items(items: Collection[Item]) -> list[str]:
    """Remove what was listed, each under the lock of its folder and only if it can still go; return what was left, and why."""
    left = list[str]()
    for folder in dict.fromkeys(item.folder for item in items):
        flow_dir = FlowDir(folder)
        try:
            _refuse_busy(flow_dir)
            with flow_dir.open_lock() as lock:
                if not try_lock(lock):
                    raise FolderError("a flow has begun to work in it")
                still = set(_items(flow_dir))
                for item in (item for item in items if item.folder == folder):
                    if item not in still:
                        left.append(f"{item.path}: it has changed")
                        continue
                    (item.path / MANIFEST_FILE).unlink(missing_ok=True)  # what a kill leaves is no whole checkpoint
                    remove(item.path)
        except (GrpoError, OSError) as error:
            left.append(f"{folder}: {cause(error)}")
    return left


def _refuse_busy(flow_dir: FlowDir) -> None:
    """Refuse to remove anything of a folder that is not ours or is under way.

    Raises:
        GrpoError: says why, without naming the folder.
    """
    if flow_dir.marker() is None:
        raise FolderError(f"it has no {MARKER_FILE}")
    holder = lock_holder(flow_dir.lock_file) or lock_holder(RunDir(flow_dir.path).journal_file)
    if holder is not None:
        raise FolderError(f"{holder} works on it")


def _flow_dirs(folder: Path) -> Iterator[FlowDir]:
    """Yield the folders with our marker: this one, or those in it, and the runs of each sweep."""
    inside = folder
    if (folder / MARKER_FILE).is_file():
        yield FlowDir(folder)
        inside = folder / "runs"
    for path in sorted(inside.iterdir()) if inside.is_dir() else ():
        if not path.is_symlink() and (path / MARKER_FILE).is_file():
            yield from _flow_dirs(path)


def _items(flow_dir: FlowDir) -> Iterator[Item]:
    run_dir = RunDir(flow_dir.path)
    checkpoints = run_dir.checkpoints
    if checkpoints.is_symlink():
        return
    within = (path for name in RunDir.subfolders for path in (run_dir.path / name).rglob(f".*{PARTIAL}"))
    partial = (*run_dir.path.glob(f".*{PARTIAL}"), *within)  # a sweep's runs have their own
    aside = (path for start in ("damaged_", ASIDE) for path in checkpoints.glob(f"{start}step_*"))
    for path in dict.fromkeys((*list_leftovers(checkpoints), *partial, *aside)):
        yield Item(kind="leftovers", path=path, folder=run_dir.path)
    best = find_best(checkpoints)
    for path in list_checkpoints(checkpoints)[:-1] if _has_ended(run_dir) else ():
        if path != best:
            yield Item(kind="checkpoints", path=path, folder=run_dir.path)


def _has_ended(run_dir: RunDir) -> bool:
    """Return whether a run needs no checkpoint before the newest; False where that is not sure."""
    try:
        last = last_event(check_journal(run_dir).history)
    except GrpoError:  # a damaged one, or another run's: its repair may need an earlier checkpoint
        return False
    return last is not None and last.kind == "end" and last.data.get("status") in ("finished", "stopped")
