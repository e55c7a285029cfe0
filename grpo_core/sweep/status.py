"""Where a sweep is: how many of its runs have ended, and how it is resumed."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_core.errors import GrpoError
from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir
from grpo_core.run.resuming import path_argument, resume_command
from grpo_core.sweep.arms import Arm, Key, Outcome, next_run, total_runs
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.progress import Journals


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """Where a sweep is."""

    state: str
    """`not started`, `running`, `finished`, `failed` (more runs than it allows), or `interrupted`."""
    name: str
    ended: int
    total: int
    """Runs."""
    outcomes: Mapping[str, int]
    """Runs by how they ended."""
    under_way: int
    """Runs that were begun and have not ended."""
    resume: str | None
    """The command that resumes the sweep; None where it is running or complete."""


def sweep_status(sweep_dir: SweepDir) -> SweepStatus:
    """Return where a sweep is.

    Raises:
        GrpoError: the folder holds no sweep, or its files were changed into something else.
    """
    stored = sweep_dir.read()
    arms, outcomes, sweep = sweep_dir.read_arms(), sweep_dir.read_outcomes(), stored.plan.sweep
    statuses = Counter(outcome.status for outcome in outcomes.values())
    begun = [(arm, seed) for arm in arms for seed in sweep.seeds if sweep_dir.run_dir(arm, seed).config_file.exists()]
    if lock_holder(sweep_dir.lock_file) is not None:
        state = "running"
    elif statuses["failed"] > sweep.failed_runs_allowed:
        state = "failed"
    elif _is_complete(stored, arms, outcomes):
        state = "finished"
    else:
        state = "interrupted" if begun or outcomes else "not started"
    retry = " --retry-failed" if state == "failed" else ""
    command = f"grpo sweep --resume {path_argument(sweep_dir.path)}{retry}"
    return SweepStatus(
        state=state,
        name=stored.name,
        ended=len(outcomes),
        total=total_runs(stored.plan.num_arms, sweep, arms),
        outcomes=dict(statuses),
        under_way=sum(key not in outcomes for key in begun),
        resume=None if state in ("running", "finished") else command,
    )


def sweep_resume_command(sweep_dir: SweepDir) -> str | None:
    """Return the command that resumes a sweep; None where it is running or complete, or its files cannot be read."""
    try:
        return sweep_status(sweep_dir).resume
    except (GrpoError, OSError):
        return None


def command_that_resumes(path: Path, *, has_prompts: bool = False) -> str | None:
    """Return the command that resumes what a folder holds, a run or a sweep; None where there is nothing to resume.

    A run of a sweep that is not complete is resumed by the sweep.

    Args:
        path: the folder; it need not be one of ours.
        has_prompts: as in `resume_command`.
    """
    if SweepDir(path).sweep_file.exists():
        return sweep_resume_command(SweepDir(path))
    command, sweep_dir = resume_command(RunDir(path), has_prompts=has_prompts), sweep_of_runs(path / "..")
    return command if command is None or sweep_dir is None else sweep_resume_command(sweep_dir)


def sweep_of_runs(folder: Path) -> SweepDir | None:
    """Return the sweep whose runs lie in a folder, its path relative to the working directory where that of the folder is.

    None where the folder is not the `runs/` of a sweep.
    """
    # Not resolved: a run may lie behind a link, and belongs to the sweep all the same.
    absolute = Path(os.path.abspath(folder))  # noqa: PTH100
    sweep_dir = SweepDir(absolute.parent)
    if absolute != sweep_dir.runs or not sweep_dir.sweep_file.exists():
        return None
    return sweep_dir if folder.is_absolute() else SweepDir(Path(os.path.relpath(sweep_dir.path)))


def _is_complete(stored: StoredSweep, arms: Mapping[int, Arm], outcomes: Mapping[Key, Outcome]) -> bool:
    """Return whether every run that is wanted has ended, or the budget is spent."""
    if is_budget_spent(stored, arms):
        return True
    return len(arms) >= stored.plan.num_arms and next_run(stored.plan.sweep, arms, outcomes, ()) is None


def is_budget_spent(stored: StoredSweep, arms: Mapping[int, Arm]) -> bool:
    """Return whether no further run begins because the sweep's hours or tokens are used up."""
    budget = stored.plan.sweep.budget
    if budget.hours is not None and stored.dir.elapsed_seconds() >= 3600 * budget.hours:
        return True
    if budget.tokens is None:
        return False
    journals = Journals(stored)
    return sum(journals.of((number, seed)).tokens for number in arms for seed in stored.plan.sweep.seeds) >= budget.tokens
