"""The loop over a sweep's runs, with a launcher that runs nothing: what it starts, retries, writes down and reports."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import apply_overrides, validate_config
from grpo_core.run.journal import Journal
from grpo_core.sweep.campaign import Campaign
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.launcher import Ended, Job
from grpo_core.sweep.plan import make_plan
from grpo_core.sweep.study import SweepStudy

STEPS = 3
Key = tuple[int, int]


class Launcher:
    """Ends every run at the next poll: as it was told for its key, else finished."""

    outlives_the_sweep = False

    def __init__(self, base: Any, endings: dict[Key, list[dict[str, Any]]]) -> None:
        self.started: list[Job] = []
        self._base = base
        self._endings = endings
        self._jobs: list[Job] = []

    def start(self, job: Job) -> None:
        """Begin a run."""
        self.started.append(job)
        self._jobs.append(job)

    def poll(self) -> list[Ended]:
        """End all runs."""
        jobs, self._jobs = self._jobs, []
        return [self._end(job) for job in jobs]

    def interrupt(self) -> None:
        """Nothing runs."""

    def _end(self, job: Job) -> Ended:
        if endings := self._endings.get(job.key):
            return Ended(job=job, **endings.pop(0))
        keys = {key: value for key, value in job.overrides.items() if not key.startswith("tracking.")}
        job.run_dir.create(validate_config(apply_overrides(self._base, keys)))
        journal = Journal(job.run_dir.journal_file)
        journal.append("start", 0, {})
        for step in range(1, STEPS + 1):
            figures = {"reward/mean": 0.1 * job.arm + step, "group/zero_std_frac": 0.0, "time/step_seconds": 1.0}
            journal.append("step", step, {"metrics": {**figures, "progress/generated_tokens": 100.0 * step}})
        journal.append("end", STEPS, {"status": "finished", "reason": None})
        journal.close()
        return Ended(job=job)


def stored_sweep(folder: Path, **keys: Any) -> StoredSweep:
    """Return a new sweep of two arms with two seeds."""
    values = {
        "base": "sums_tiny_cpu",
        "overrides": {"training.steps": STEPS},
        "axes": {"loss.beta": [0.1, 1.0]},
        "seeds": [0, 1],
        "objective": {"metric": "reward/mean"},
    }
    sweep_dir = SweepDir(folder / "sweep")
    sweep_dir.create(make_plan({**values, **keys}), "name", "id-1")
    return sweep_dir.read()


def run_all(stored: StoredSweep, endings: dict[Key, list[dict[str, Any]]]) -> tuple[Launcher, list[str], set[int]]:
    """Run a sweep to its end; return its launcher, its lines, and the arms of the study that are still open."""
    study, launcher, lines = SweepStudy(stored), Launcher(stored.plan.base, endings), list[str]()
    outcomes, tracking = stored.dir.read_outcomes(), {"tracking.parent": "parent"}
    reports = {"report_line": lines.append, "report_percent": lambda _: None}
    campaign = Campaign(stored, study, outcomes, launcher, tracking=tracking, **reports)
    while campaign.proceed():
        pass
    still_open = study.open_arms()
    study.close()
    return launcher, lines, still_open


def test_every_run_is_started_once_and_reported(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path)
    launcher, lines, still_open = run_all(stored, {})
    assert [job.key for job in launcher.started] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert launcher.started[3].name == "β=1 seed=1"
    assert launcher.started[3].overrides == {
        "loss.beta": 1.0,
        "training.seed": 1,
        "tracking.run_name": "β=1 seed=1",
        "tracking.labels": {"sweep": "id-1", "arm": "001"},
        "tracking.parent": "parent",
    }
    assert {outcome.status for outcome in stored.dir.read_outcomes().values()} == {"finished"}
    assert still_open == set()
    assert lines[0].startswith("[1/4] β=0.1 seed=0: finished, objective 2.000, reward 2.000, KL to the initial policy - nats")
    again, more, _ = run_all(stored, {})
    assert again.started == []
    assert more == []


def test_a_lost_run_is_begun_once_more_and_a_cancelled_one_is_not(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path, failed_runs_allowed=1)
    lost = {"failure": "its process was lost", "crashed": True}
    launcher, lines, _ = run_all(stored, {(0, 0): [lost], (1, 0): [lost, lost], (0, 1): [{"cancelled": True}]})
    assert [job.key for job in launcher.started].count((0, 0)) == 2
    assert [job.key for job in launcher.started].count((1, 0)) == 2
    outcomes = stored.dir.read_outcomes()
    assert {key: outcome.status for key, outcome in outcomes.items()} == {
        (0, 0): "finished",
        (1, 0): "failed",
        (0, 1): "stopped",
        (1, 1): "finished",
    }
    assert "β=0.1 seed=0: its process was lost; once more" in lines
    assert outcomes[0, 1].cause == "its flow run was cancelled"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"budget": {"tokens": 300}}, "budget.tokens: 300 of 300 are spent; no further run begins"),
        ({"failed_runs_allowed": 0}, None),
    ],
)
def test_no_further_run_begins_once_the_budget_or_the_failures_are_spent(
    tmp_path: Path, keys: dict[str, Any], line: str | None
) -> None:
    stored = stored_sweep(tmp_path, **keys)
    launcher, lines, _ = run_all(stored, {} if line else {(0, 0): [{"failure": "no memory"}]})
    assert [job.key for job in launcher.started] == [(0, 0)]
    assert lines.count(str(line)) == (1 if line else 0)
