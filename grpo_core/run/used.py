"""Which checkpoints other runs begin with: they stay, whether their own training prunes or `grpo clean` does."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from grpo_core.errors import GrpoError
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.lora.targets import START
from grpo_core.run.folder import RunDir
from grpo_core.run.start_weights import BASE, run_of, start_places

RUNS_IN = ("*/config.json", "*/runs/*/config.json")
"""Configurations of the runs in a folder, and of the runs of its sweeps."""
WEIGHTS = {BASE: "model", START: "first adapter"}
"""What a policy is for a run that begins with it."""


def places_of(run: Path) -> list[Path]:
    """Return the folder that a run lies in, and where it is a sweep's, the one that the sweep lies in."""
    folder = run.resolve().parent
    is_of_sweep = (folder.parent / "sweep.json").exists()  # the name is `sweep/folder.py`'s, a layer above
    return [folder, *([folder.parent.parent] if is_of_sweep else [])]


def used_checkpoints(folders: Iterable[Path]) -> dict[Path, tuple[str, Path]]:
    """Return {checkpoint: (what it is for a run, that run)}, of all runs in folders and in the sweeps there.

    An evaluation is done with its policy. Runs of an older version, which have no marker, count as well.
    """
    used = {}
    for file in _configurations(folders):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RuntimeError, GrpoError):
            if RunDir(file.parent).read_origin().preset == "evaluation":
                continue
            model = read_json(file)["model"]
            named = {BASE: model["source"], START: (model.get("lora") or {}).get("init_from")}
            for key, source in (*named.items(), *start_places(RunDir(file.parent)).items()):
                if source is not None and (policy := Path(source).expanduser()).is_dir():
                    place = policy.resolve()
                    used[place.parent if place.name == "policy" else place] = WEIGHTS[key], file.parent
    return used


def prunable_starts(run_dir: RunDir, starts: dict[str, str]) -> list[str]:
    """Return a warning for each folder with which a run begins and which another run may prune without seeing this one.

    Args:
        run_dir: of the run, with its configuration.
        starts: the folders, by key.
    """
    warnings = list[str]()
    if run_dir.read_origin().preset == "evaluation":
        return warnings
    for key, folder in starts.items():
        owner = run_of(folder)
        if owner is None:
            continue
        if run_dir.config_file.resolve() not in [file.resolve() for file in _configurations(places_of(owner.path))]:
            warnings.append(
                f"warning: {key} {folder} is a checkpoint of {owner.path}, which looks for its users in "
                f"{places_of(owner.path)[0]} alone and may prune it; this run could then not be reproduced: copy the folder"
            )
    return warnings


def _configurations(folders: Iterable[Path]) -> Iterator[Path]:
    return (file for folder in folders for pattern in RUNS_IN for file in folder.glob(pattern))
