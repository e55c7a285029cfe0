"""The disk that a run or a sweep needs and has: printed before anything costly, and refused where it will not fit."""

import os
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.machine.sqlite import sqlite_file
from grpo_core.run.announce import announce_disk, announce_memory
from grpo_core.run.disk_need import KeptWeights, checkpoint_bytes, disk_need, kept_weights, require_disk
from grpo_core.run.flow_folder import RUNS_FOLDER
from grpo_core.run.folder import RunDir
from grpo_core.run.preflight import slow_dtype_warnings
from grpo_core.sweep.plan import Plan
from tasks.run.progress import say
from tasks.tracking.store import ARTIFACTS, TrackedRun, is_local


def check_disk(run_path: Path, tracked: TrackedRun, model: Path) -> None:
    """Print what a run needs and has, and refuse one that will not fit.

    Args:
        run_path: its folder; what an earlier session wrote there counts.
        tracked: its MLflow run.
        model: folder of its initial policy.

    Raises:
        JournalError: it will not fit; the message names what needs less.
    """
    announce_disk(RunDir(run_path), model, _artifacts(tracked), say)


def _artifacts(tracked: TrackedRun) -> Path | None:
    """Return the local folder that a run's artifacts go to; None where a server takes them."""
    store = sqlite_file(tracked.uri)
    return None if store is None else store.parent / ARTIFACTS


def check_sweep_disk(sweep_path: Path | None, plan: Plan) -> None:
    """Print what the runs of a sweep need together, and refuse one that will not fit; say so where a model is not here yet.

    Args:
        sweep_path: its folder; None = a new one in `runs/`.
        plan: the sweep.

    Raises:
        JournalError: it will not fit.
    """
    kept = [_kept_weights(config) for config in plan.configs]
    known = [weights for weights in kept if weights is not None]
    if len(known) < len(kept):
        unknown = plan.configs[kept.index(None)].model.source
        say(f"disk: not known before the model {unknown} is here; each run prints and checks what it needs")
        return
    is_here = is_local(plan.configs[0].tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:")
    arms = list(zip(plan.configs, known, strict=True))
    largest = max(disk_need(config, weights, tracked_here=is_here) for config, weights in arms)
    writing = max(checkpoint_bytes(config, weights) for config, weights in arms)  # one, while a run writes it
    runs = plan.num_runs
    need = runs * (largest - writing) + min(plan.sweep.runs.concurrency, runs) * writing
    said = require_disk(f"the sweep ({runs} runs)", need, sweep_path or RUNS_FOLDER)
    say(f"disk: {said} ({runs} runs)")


def _kept_weights(config: RunConfig) -> KeptWeights | None:
    from grpo_core.policy.sources.find import model_here

    folder = model_here(config.model.source)
    return None if folder is None else kept_weights(config, folder)


def say_slow_dtype(run_path: Path) -> None:
    """Print a warning where the run's dtype is slow on this processor."""
    for warning in slow_dtype_warnings(RunDir(run_path).read_config()):
        say(f"warning: {warning}")


def say_memory(run_path: Path, model: Path) -> None:
    """Print what the run takes beside its models: copies of checkpoints, a vLLM that it starts, and whether that is there.

    Args:
        run_path: its folder.
        model: folder of its initial policy.
    """
    announce_memory(RunDir(run_path), model, say)
