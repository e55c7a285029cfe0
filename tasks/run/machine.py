"""What a run or a sweep asks of this machine: printed before anything costly, and refused where it will not fit on the disk."""

from pathlib import Path

from grpo_core.machine.sqlite import sqlite_file
from grpo_core.policy.sources.find import model_here
from grpo_core.run.announce import announce_disk, announce_memory
from grpo_core.run.disk_need import checkpoint_bytes, disk_need, kept_weights, require_disk
from grpo_core.run.flow_folder import RUNS_FOLDER
from grpo_core.run.folder import RunDir
from grpo_core.run.preflight import slow_dtype_warnings
from grpo_core.sweep.plan import Plan
from tasks.run.progress import say
from tasks.tracking.store import TrackedRun, tracking_uri


def check_machine(run_path: Path, tracked: TrackedRun, model: Path) -> None:
    """Print what a run needs and has of disk and memory, and refuse one that will not fit; warn of a slow dtype.

    Args:
        run_path: its folder; what an earlier session wrote there counts.
        tracked: its MLflow run.
        model: folder of its initial policy.

    Raises:
        JournalError: it will not fit; the message names what needs less.
    """
    run_dir = RunDir(run_path)
    for warning in slow_dtype_warnings(run_dir.read_config()):
        say(f"warning: {warning}")
    announce_disk(run_dir, model, sqlite_file(tracked.uri), say)
    announce_memory(run_dir, model, say)


def check_sweep_disk(sweep_path: Path | None, plan: Plan) -> None:
    """Print what the runs of a sweep need together, and refuse one that will not fit; say so where a model is not here yet.

    Args:
        sweep_path: its folder; None = a new one in `runs/`.
        plan: the sweep.

    Raises:
        JournalError: it will not fit.
    """
    folder = sweep_path or RUNS_FOLDER
    needs, writing = [], 0  # one run writes a checkpoint beside those that it keeps
    for config in plan.configs:
        weights = kept_weights(config, model) if (model := model_here(config.model.source)) else None
        if weights is None:
            say(f"disk: not known before the model {config.model.source} is here; each run prints and checks what it needs")
            return
        is_here = sqlite_file(tracking_uri(config, folder)) is not None
        needs.append(disk_need(config, weights, tracked_here=is_here))
        writing = max(writing, checkpoint_bytes(config, weights))
    runs = plan.num_runs
    need = runs * (max(needs) - writing) + min(plan.sweep.runs.concurrency, runs) * writing
    say(f"disk: {require_disk(f'the sweep ({runs} runs)', need, folder)} ({runs} runs)")
