"""The disk that a run or a sweep needs and has: printed before anything costly, and refused where it will not fit."""

import os
from collections.abc import Mapping
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.machine.disk import folder_bytes, free_bytes
from grpo_core.run.disk_need import DiskNeed, count_parameters, disk_need, refuse_too_little, savings, shown_bytes, sweep_need
from grpo_core.run.folder import RunDir
from grpo_core.run.starting import RUNS_FOLDER
from grpo_core.sweep.plan import Plan
from tasks.run.progress import say
from tasks.tracking.artifacts import artifact_folder, is_local
from tasks.tracking.store import TrackedRun


def check_disk(run_path: Path, tracked: TrackedRun, model: Path) -> None:
    """Print what a run needs and has, and refuse one that will not fit.

    Args:
        run_path: its folder; what an earlier session wrote there counts.
        tracked: its MLflow run.
        model: folder of its initial policy.

    Raises:
        JournalError: it will not fit; the message names what needs less.
    """
    from grpo_core.policy.saved import list_checkpoints, step_of

    run_dir = RunDir(run_path)
    config, num_parameters = run_dir.read_config(), count_parameters(model)
    if num_parameters is None:
        say(f"disk: how much the run needs is not known (no safetensors weights in {model})")
        return
    checkpoints = list_checkpoints(run_dir.checkpoints)
    need = disk_need(
        config,
        num_parameters,
        from_step=step_of(checkpoints[-1]) if checkpoints else 0,
        present=[folder_bytes(path) for path in checkpoints],
    )
    artifacts = artifact_folder(tracked)
    what, disks = _describe(need, run_path, artifacts)
    remedies = savings(config, num_parameters, tracked_here=artifacts is not None) if not checkpoints else []
    refuse_too_little(f"disk: the run {what}", disks, [*remedies, *_elsewhere(run_path, "--run-dir", bool(checkpoints))])
    say(f"disk: {what}")


def check_sweep_disk(sweep_path: Path | None, plan: Plan) -> None:
    """Print what the runs of a sweep need together, and refuse one that will not fit; say so where a model is not here yet.

    Args:
        sweep_path: its folder; None = a new one in `runs/`.
        plan: the sweep.

    Raises:
        JournalError: it will not fit.
    """
    sizes = {config.model.source: _parameters_here(config) for config in plan.configs}
    unknown = [source for source, size in sizes.items() if size is None]
    if unknown:
        say(f"disk: not known before the model {unknown[0]} is here; each run prints and checks what it needs")
        return
    sweep = plan.sweep
    needs = [_need_of_arm(config, sizes) for config in plan.configs]
    need = sweep_need(needs, plan.num_runs, sweep.runs.concurrency)
    uri = plan.configs[0].tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:"
    folder, beside = (sweep_path, sweep_path.parent) if sweep_path is not None else (RUNS_FOLDER, RUNS_FOLDER)
    what, disks = _describe(need, folder, beside / "mlartifacts" if is_local(uri) else None)
    what = f"{what} ({plan.num_runs} runs)"
    remedies = savings(plan.configs[0], sizes[plan.configs[0].model.source] or 0, tracked_here=is_local(uri))
    each = [f"for each run {remedy}" for remedy in remedies]
    refuse_too_little(f"disk: the sweep {what}", disks, [*each, *_elsewhere(folder, "--sweep-dir", resumed=False)])
    say(f"disk: {what}")


def _need_of_arm(config: RunConfig, sizes: Mapping[str, int | None]) -> DiskNeed:
    return disk_need(config, sizes[config.model.source] or 0)


def _parameters_here(config: RunConfig) -> int | None:
    from grpo_core.policy.loading import model_here

    folder = model_here(config.model.source)
    return None if folder is None else count_parameters(folder)


def _describe(need: DiskNeed, folder: Path, artifacts: Path | None) -> tuple[str, list[tuple[int, int | None]]]:
    """Return what is needed and free in words, and (needed, free) of each disk."""
    stays = f" ({shown_bytes(need.lasting)} stay)" if need.most - need.lasting > 1e6 else ""
    text, free = f"needs up to {shown_bytes(need.most)} in {folder}{stays}", free_bytes(folder)
    if artifacts is None:
        return f"{text}; {_shown_free(free)}", [(need.most, free)]
    text += f" and {shown_bytes(need.tracked)} in {_shown_path(artifacts)}"
    there = _existing(artifacts)
    if _existing(folder).stat().st_dev == there.stat().st_dev:
        return f"{text}; {_shown_free(free)}", [(need.most + need.tracked, free)]
    elsewhere = free_bytes(there)
    words = f"{text}; {_shown_free(free)} and {_shown_free(elsewhere)} there"
    return words, [(need.most, free), (need.tracked, elsewhere)]


def _elsewhere(path: Path, option: str, resumed: bool) -> list[str]:
    if resumed:
        return [f"move {path} to a larger disk"]
    return [f"another {option} on a larger disk", "`grpo clean`, which lists what can go"]


def _shown_free(free: int | None) -> str:
    return "how much is free is not known" if free is None else f"{shown_bytes(free)} free"


def _existing(path: Path) -> Path:
    """Return the nearest folder that exists already."""
    return next(parent for parent in (path, *path.resolve().parents) if parent.exists())


def _shown_path(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
