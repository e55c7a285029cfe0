"""Where a sweep is, the command that resumes it, and what lies in a folder of runs, from what a kill at any time leaves."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from grpo_core.compare.comparison import compare_sources
from grpo_core.compare.page import write_comparison
from grpo_core.compare.runs import Source
from grpo_core.machine.disk import write_json
from grpo_core.run.flow_folder import MARKER_FILE
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.sweep.arms import Outcome
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.status import command_that_resumes, list_folders, sweep_status, training_time
from tests.compared import write_compared
from tests.support.sweeps import choose_arms, stored_sweep, write_run

KEYS = [(arm, seed) for seed in (0, 1) for arm in (0, 1)]


def make(folder: Path, **keys: object) -> StoredSweep:
    stored = stored_sweep(folder, **keys)
    choose_arms(stored)
    return stored


def begin(stored: StoredSweep, arm: int) -> RunDir:
    run_dir = stored.dir.run_dir(arm, 0)
    write_run(run_dir, stored.plan.configs[arm], lambda _: {}, 0, end=None)
    return run_dir


def end(stored: StoredSweep, *keys: tuple[int, int], status: str = "finished") -> None:
    for arm, seed in keys:
        stored.dir.add_outcome(Outcome(arm=arm, seed=seed, status=status))


def test_a_sweep_is_interrupted_until_each_of_its_runs_has_ended(tmp_path: Path) -> None:
    stored = make(tmp_path, name="my sweep")
    assert (sweep_status(stored.dir).state, sweep_status(stored.dir).total) == ("not started", 4)
    run_dir = begin(stored, 0)
    end(stored, *KEYS[1:])
    now = sweep_status(stored.dir)
    assert (now.state, now.ended, now.total, now.under_way, now.outcomes) == ("interrupted", 3, 4, 1, {"finished": 3})
    assert now.resume == f"grpo sweep --resume '{stored.dir.path}'"
    # A run of it is resumed by the sweep, which then knows of its end.
    assert command_that_resumes(run_dir.path) == command_that_resumes(stored.dir.path) == now.resume
    end(stored, KEYS[0])
    assert (sweep_status(stored.dir).state, sweep_status(stored.dir).resume) == ("finished", None)
    assert command_that_resumes(run_dir.path) is None


@pytest.mark.parametrize(
    ("here", "run"), [("sweep/runs/arm-001-seed-0", "../arm-000-seed-0"), ("sweep/runs/arm-000-seed-0", ".")]
)
def test_a_run_is_resumed_by_its_sweep_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, run: str
) -> None:
    stored = make(tmp_path)
    for arm in (0, 1):
        begin(stored, arm)
    monkeypatch.chdir(tmp_path / here)
    assert command_that_resumes(Path(run)) == f"grpo sweep --resume {stored.dir.path}"


@pytest.mark.parametrize(("allowed", "state"), [(0, "failed"), (1, "finished")])
def test_failed_runs_are_run_again_where_there_are_too_many(tmp_path: Path, allowed: int, state: str) -> None:
    stored = make(tmp_path, failed_runs_allowed=allowed)
    end(stored, *KEYS[1:])
    end(stored, KEYS[0], status="failed")
    now = sweep_status(stored.dir)
    assert now.state == state
    assert now.resume == (f"grpo sweep --resume {stored.dir.path} --retry-failed" if allowed == 0 else None)


@pytest.mark.parametrize(("hours", "state"), [(1.9, "interrupted"), (1.5, "finished")])
def test_a_sweep_whose_budget_is_spent_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: float, state: str
) -> None:
    """Both runs took an hour, one half of it beside the other; the second was resumed three hours later."""

    def moment(minute: int) -> str:
        return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)).isoformat()

    stored = make(tmp_path, budget={"hours": hours})
    for arm, sessions in enumerate([[(0, 60)], [(30, 60), (240, 270)]]):
        run_dir = stored.dir.run_dir(arm, 0)
        run_dir.create(stored.plan.configs[arm])
        write_json(run_dir.path / MARKER_FILE, {"kind": "run", "created": moment(sessions[0][0])})
        journal = Journal(run_dir.journal_file)
        for step, session in enumerate(sessions):
            for kind, minute in zip(("resume" if step else "start", "step"), session, strict=True):
                monkeypatch.setattr("grpo_core.run.journal.now", lambda minute=minute: moment(minute))
                journal.append(kind, step, {"metrics": {}} if kind == "step" else {})
        journal.close()
    assert sweep_status(stored.dir).state == state  # 60 + 30 minutes


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with an interrupted run, and an interrupted sweep of two runs."""
    write_compared(tmp_path / "run", steps=2, end=None)
    sweep_dir = make(tmp_path).dir
    for arm, correct in ((0, [True, False]), (1, [True, True])):
        write_compared(sweep_dir.run_dir(arm, 0).path, {"loss.beta": (0.01, 0.1)[arm]}, steps=2, correct=correct)
    return tmp_path


def test_runs_and_sweeps_are_listed_with_the_best_accuracy_that_can_be_read(runs: Path) -> None:
    write_comparison(compare_sources([Source(given="run", path=runs / "run")]), runs / "comparison")
    found = {
        entry.path.name: (entry.kind, entry.state, entry.done, entry.total, entry.accuracy) for entry in list_folders(runs)
    }
    assert found == {"run": ("run", "died", 2, 100, None), "sweep": ("sweep", "interrupted", 0, 4, 1.0)}
    SweepDir(runs / "sweep").run_dir(1, 0).journal_file.write_text("{\n")
    RunDir(runs / "run").config_file.unlink()
    listed = {entry.kind: entry for entry in list_folders(runs)}
    assert listed["sweep"].accuracy == 0.5
    assert listed["run"].state == "damaged"
    assert "no readable config.json" in str(listed["run"].fault)


def test_a_check_tells_how_long_a_sweep_trains_at_the_pace_of_the_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = make(tmp_path).plan
    assert training_time(plan) == "4 runs x 3 steps; how long they train is unknown before the first run of sums_tiny_cpu"
    run_dir = RunDir(Path("runs", "one"))
    write_run(run_dir, plan.configs[0], lambda _: {"time/step_seconds": 20.0}, 2)
    write_json(run_dir.origin_file, {"preset": "sums_tiny_cpu"})
    assert training_time(plan) == "4 runs x 3 steps: about 4 min 00 s of training at 20 s a step, as runs/one"


@pytest.mark.parametrize("folder", ["sweep", "sweep/runs"])
def test_the_runs_of_a_sweep_are_resumed_by_the_sweep(runs: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    SweepDir(runs / "sweep").run_dir(1, 0).flow_run_file.touch()  # its flow has not written its report
    monkeypatch.chdir(runs)
    listed = {entry.path.name: entry.resume for entry in list_folders(Path(folder))}
    assert listed == {"arm-000-seed-0": None, "arm-001-seed-0": f"grpo sweep --resume {runs / 'sweep'}"}
