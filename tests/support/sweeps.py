"""Sweeps in a folder as they are left: new ones, with arms that were chosen, and with runs as their trainings write them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_core.config import Origin, RunConfig
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.sweep.arms import Arm, grid
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.plan import make_plan

STEPS = 3
"""Of each run of a new sweep, unless its keys say another number."""
ALWAYS = {"group/zero_std_frac": 0.0, "time/step_seconds": 1.0}


def stored_sweep(folder: Path, name: str = "sweep", **keys: Any) -> StoredSweep:
    """Return a new sweep of two arms with two seeds."""
    values = {
        "base": "sums_tiny_cpu",
        "overrides": {"training.steps": STEPS},
        "axes": {"loss.beta": [0.1, 1.0]},
        "seeds": [0, 1],
        "objective": {"metric": "reward/mean"},
    }
    sweep_dir = SweepDir(folder / name)
    sweep_dir.create(make_plan({**values, **keys}), "name", "id-1")
    return sweep_dir.read()


def choose_arms(stored: StoredSweep) -> dict[int, Arm]:
    """Write down all arms of a grid as chosen, and return them."""
    arms = {number: Arm(number=number, values=values) for number, values in enumerate(grid(stored.plan.sweep))}
    stored.dir.write_arms(arms)
    return arms


def write_run(
    run_dir: RunDir, config: RunConfig, figures: Callable[[int], Mapping[str, float]], last: int, end: str | None = "finished"
) -> None:
    """Write a run whose step measures what a function says of it; one without an end was killed."""
    run_dir.create(config, Origin(preset="quickstart"))
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    for step in range(1, last + 1):
        metrics = {**ALWAYS, "progress/generated_tokens": 100.0 * step, **figures(step)}
        journal.append("step", step, {"metrics": metrics})
    if end is not None:
        journal.append("end", last, {"status": end, "reason": None})
    journal.close()
