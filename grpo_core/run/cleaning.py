"""Which checkpoints and leftovers of runs can go, and their removal: `grpo clean`, and a training that prunes.

Only folders with our marker are looked into, only things with names that we give are listed, and nothing of a run that is under
way. The newest and the best checkpoint of a run always stay, and those that other runs begin with.
"""

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_core.errors import GrpoError, cause
from grpo_core.machine.disk import PARTIAL, folder_bytes, remove
from grpo_core.machine.locks import lock_holder
from grpo_core.policy.saved import ASIDE, MANIFEST_FILE, find_best, list_checkpoints, list_leftovers
from grpo_core.run.flow_folder import MARKER_FILE
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import last_event
from grpo_core.run.provenance import config_here, sources_of

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
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Removable:
    """What can go, or has gone, and what was passed over, each with the reason."""

    items: tuple[Item, ...]
    skipped: tuple[str, ...]


def clean(
    folder: Path, kinds: Collection[str] = tuple(KINDS), runs: Collection[Path] = (), *, remove_them: bool = False
) -> Removable:
    """Return what can go of the runs in a folder, which may itself be that of a run or a sweep.

    Args:
        folder: usually `runs`.
        kinds: of KINDS.
        runs: only of these folders; empty = of all.
        remove_them: whether it is removed, under the lock of each run.
    """
    chosen = [RunDir(path) for path in runs] or list(_run_dirs(folder))
    items, skipped, begun = list[Item](), list[str](), _used_in(folder)
    for run_dir in chosen:
        if holder := lock_holder(run_dir.journal_file):
            skipped.append(f"run dir {run_dir.path}: {holder} works on this run")
            continue
        try:
            with run_dir.locked():
                used = {**begun, **used_checkpoints(run_dir)}
                for kind, path in [item for item in _items(run_dir) if item[0] in kinds]:
                    if user := used.get(path.resolve()):
                        skipped.append(f"{path}: {user} begins with it and cannot be reproduced without it")
                        continue
                    items.append(Item(kind=kind, path=path, bytes=folder_bytes(path) or path.lstat().st_size))
                    if remove_them:
                        (path / MANIFEST_FILE).unlink(missing_ok=True)  # what a kill leaves is no whole checkpoint
                        remove(path)
        except (GrpoError, OSError) as error:
            skipped.append(cause(error))
    return Removable(items=tuple(items), skipped=tuple(skipped))


def _run_dirs(folder: Path) -> Iterator[RunDir]:
    """Yield the folders of runs: this one, or those in it, and the runs of each sweep."""
    kind = RunDir(folder).kind
    if kind in RunDir.kinds:
        yield RunDir(folder)
        return
    inside = folder if kind is None else folder / "runs"
    for path in sorted(inside.iterdir()) if inside.is_dir() else ():
        if not path.is_symlink() and (path / MARKER_FILE).is_file():
            yield from _run_dirs(path)


def _items(run_dir: RunDir) -> Iterator[tuple[str, Path]]:
    checkpoints = run_dir.checkpoints
    partial = (path for path in run_dir.path.rglob(f".*{PARTIAL}") if not path.is_relative_to(checkpoints))
    for path in (*list_leftovers(checkpoints), *checkpoints.glob(f"{ASIDE}step_*"), *partial):
        yield "leftovers", path
    with contextlib.suppress(GrpoError):  # the repair of a damaged journal, or another run's, may need an earlier checkpoint
        last = last_event(check_run(run_dir).history)
        if last is not None and last.kind == "end" and last.data["status"] != "failed":
            best = find_best(checkpoints)
            yield from (("checkpoints", path) for path in list_checkpoints(checkpoints)[:-1] if path != best)


def used_checkpoints(run_dir: RunDir) -> dict[Path, Path]:
    """Return {checkpoint: run that begins with it} of all runs beside this one; of a sweep's run, also beside the sweep."""
    folder = run_dir.path.resolve().parent
    is_of_sweep = (folder.parent / "sweep.json").exists()  # the name is `sweep/folder.py`'s, a layer above
    return {**_used_in(folder), **(_used_in(folder.parent.parent) if is_of_sweep else {})}


def _used_in(folder: Path) -> dict[Path, Path]:
    """Return the same of the runs in a folder and in the sweeps there. An evaluation is done with its policy."""
    used = {}
    for file in (*folder.glob("*/config.json"), *folder.glob("*/runs/*/config.json")):
        run_dir = RunDir(file.parent)
        with contextlib.suppress(GrpoError, OSError, ValueError):  # a damaged neighbour is no user
            is_user = run_dir.kind not in (None, "evaluation")
            for source in sources_of(config_here(run_dir)).values() if is_user else ():
                policy = Path(source).expanduser().resolve()
                used[policy.parent if policy.name == "policy" else policy] = run_dir.path
    return used
