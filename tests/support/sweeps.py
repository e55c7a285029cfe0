"""Sweeps in a folder as they are left: new ones, with arms that were chosen, and with runs as their trainings write them."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from grpo_core.config import Origin, RunConfig, apply_overrides, validate_config
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.sweep.arms import Arm, arm_config, grid
from grpo_core.sweep.campaign import Campaign, Ended, Job
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.plan import make_plan
from grpo_core.sweep.study import SweepStudy

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


def spread_runs(folder: Path, seeds: int) -> Path:
    """Return the folder of a sweep of two settings whose rewards spread round 0.5, each run by itself."""
    stored = stored_sweep(folder, "pilot-of", seeds=list(range(seeds)))
    random = np.random.default_rng(0)
    for arm, beta in enumerate((0.1, 1.0)):
        for seed in range(seeds):
            config = arm_config(stored.plan.sweep.model_copy(update={"seeds": (seed,)}), stored.plan.base, {"loss.beta": beta})
            reward = 0.5 + random.normal(0, 0.02)
            write_run(stored.dir.run_dir(arm, seed), config, lambda _, reward=reward: {"reward/mean": reward}, STEPS)
    return stored.dir.path


Key = tuple[int, int]


class Launcher:
    """Ends every run at the next poll: as it was told for its key, else finished."""

    outlives_the_sweep = False

    def __init__(self, base: Any, endings: dict[Key, list[dict[str, Any]]]) -> None:
        self.started: list[Job] = []
        self._base, self._endings = base, endings
        self._jobs: list[Job] = []

    def start(self, job: Job) -> None:
        self.started.append(job)
        self._jobs.append(job)

    def poll(self) -> list[Ended]:
        jobs, self._jobs = self._jobs, []
        return [self._end(job) for job in jobs]

    def interrupt(self) -> None:
        """Nothing runs."""

    def _end(self, job: Job) -> Ended:
        if endings := self._endings.get(job.key):
            return Ended(job=job, **endings.pop(0))
        keys = {key: value for key, value in job.overrides.items() if not key.startswith("tracking.")}
        config = validate_config(apply_overrides(self._base, keys))
        write_run(job.run_dir, config, lambda step: {"reward/mean": 0.1 * job.arm + step}, STEPS)
        return Ended(job=job)


def run_all(
    stored: StoredSweep, endings: dict[Key, list[dict[str, Any]]], kind: type[Launcher] = Launcher
) -> tuple[list[Job], list[str], set[int]]:
    """Run a sweep to its end; return what it started, its lines, and the arms of the study that are still open."""
    study, launcher, lines = SweepStudy(stored), kind(stored.plan.base, endings), list[str]()
    reports = {"report_line": lines.append, "report_percent": lambda _: None}
    campaign = Campaign(stored, study, stored.dir.read_outcomes(), launcher, tracking={"tracking.parent": "parent"}, **reports)
    while campaign.proceed():
        campaign._next_look = 0.0
    with closing(study):
        return launcher.started, lines, study.open_arms()
