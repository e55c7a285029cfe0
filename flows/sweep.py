"""Flow "grpo-sweep": many runs that differ only in what is swept, and one report on them.

open_sweep - track_sweep - run_arms (each run is the flow grpo, here or through a deployment) - report_sweep
"""

from pathlib import Path

from prefect import flow

from flows.prefect_pages import NO_OVERRIDES, Name, Overrides, SweepFile, form, tag_sweep
from flows.signals import ends_when_asked
from tasks.sweep.stages import SweepSummary, hold_sweep, open_sweep, refuse_failures, report_sweep, run_arms
from tasks.tracking.sweep import end_sweep, track_sweep


@form
@flow(name="grpo-sweep", flow_run_name="{sweep}")
def grpo_sweep(*, sweep: SweepFile, overrides: Overrides = NO_OVERRIDES, sweep_dir: str | None = None) -> SweepSummary:
    """Run every setting of a sweep once per seed, and report which differ, with confidence intervals.

    Everything that can be refused is refused before the first run. A run that fails is recorded and does not end the sweep, up
    to `failed_runs_allowed`.

    Args:
        sweep: Name of a file in `configs/sweeps/`, or path of a sweep file.
        overrides: Keys of the sweep file to change, for example {"seeds": [0, 1], "runs.where": "deployment"}.
        sweep_dir: Folder of the sweep; left out, a new one under `runs/`.
    """
    return run_sweep(open_sweep(sweep, overrides, Path(sweep_dir) if sweep_dir else None))


@form
@flow(name="grpo-sweep", flow_run_name="{sweep_dir}, resumed")
def resume_sweep(*, sweep_dir: Name, retry_failed: bool = False, extend: Overrides = NO_OVERRIDES) -> SweepSummary:
    """Resume an interrupted sweep: finished runs are not run again, interrupted ones are resumed, the search continues.

    Args:
        sweep_dir: Folder of the sweep.
        retry_failed: Run those that have failed once more.
        extend: What is added first, for example {"seeds": [0, 1, 2, 3]}, {"axes.loss.beta": [0.1, 1, 4]} or {"trials": 30}:
            whole lists, which have all that there is.
    """
    return run_sweep(Path(sweep_dir), retry_failed, extend)


@ends_when_asked
def run_sweep(sweep_path: Path, retry_failed: bool = False, extend: Overrides = NO_OVERRIDES) -> SweepSummary:
    """Do what is left to do of the sweep in a folder, and what `extend` adds to it."""
    with hold_sweep(sweep_path, extend) as stored:
        tag_sweep(stored)
        tracked = track_sweep(stored)
        with end_sweep(tracked):
            run_arms(stored, tracked, retry_failed)
            summary = report_sweep(stored, tracked)
            refuse_failures(stored)
            return summary
