"""Where a sweep is, and the command that resumes it, from what a kill at any time leaves in its folder."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import Origin, load_config
from grpo_core.machine.jsonfile import write_json
from grpo_core.run.flow_folder import MARKER_FILE
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.sweep.arms import Arm, Outcome
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import make_plan
from grpo_core.sweep.status import command_that_resumes, sweep_status

KEYS = [(arm, seed) for seed in (0, 1) for arm in (0, 1)]


def make(folder: Path, **values: Any) -> SweepDir:
    """Return the folder of a sweep of two arms and two seeds whose arms are chosen and whose runs have not begun."""
    sweep_dir = SweepDir(folder)
    plan = make_plan({"base": "quickstart", "axes": {"loss.beta": [0.01, 0.1]}, "seeds": [0, 1], **values})
    sweep_dir.create(plan, "two", "id-1")
    sweep_dir.write_arms({number: Arm(number=number, values={"loss.beta": beta}) for number, beta in enumerate((0.01, 0.1))})
    return sweep_dir


def begin(sweep_dir: SweepDir, arm: int, seed: int) -> RunDir:
    run_dir = sweep_dir.run_dir(arm, seed)
    run_dir.create(load_config("quickstart"), Origin(preset="quickstart"))
    return run_dir


def end(sweep_dir: SweepDir, *keys: tuple[int, int], status: str = "finished") -> None:
    for arm, seed in keys:
        sweep_dir.add_outcome(Outcome(arm=arm, seed=seed, status=status))


def test_a_sweep_is_interrupted_until_each_of_its_runs_has_ended(tmp_path: Path) -> None:
    sweep_dir = make(tmp_path / "my sweep")
    assert (sweep_status(sweep_dir).state, sweep_status(sweep_dir).total) == ("not started", 4)
    run_dir = begin(sweep_dir, 0, 0)
    end(sweep_dir, *KEYS[1:])
    now = sweep_status(sweep_dir)
    assert (now.state, now.ended, now.total, now.under_way, now.outcomes) == ("interrupted", 3, 4, 1, {"finished": 3})
    assert now.resume == f"grpo sweep --resume '{sweep_dir.path}'"
    # A run of it is resumed by the sweep, which then knows of its end.
    assert command_that_resumes(run_dir.path) == command_that_resumes(sweep_dir.path) == now.resume
    end(sweep_dir, KEYS[0])
    assert (sweep_status(sweep_dir).state, sweep_status(sweep_dir).resume) == ("finished", None)
    assert command_that_resumes(run_dir.path) is None


@pytest.mark.parametrize(
    ("here", "run"),
    [
        ("sweep/runs", "arm-000-seed-0"),
        ("sweep/runs/arm-000-seed-0", "."),
        ("sweep/runs/arm-001-seed-0", "../arm-000-seed-0"),
        (".", "sweep/runs/arm-000-seed-0"),
    ],
)
def test_a_run_is_resumed_by_its_sweep_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, run: str
) -> None:
    sweep_dir = make(tmp_path / "sweep")
    for arm in (0, 1):
        begin(sweep_dir, arm, 0)
    monkeypatch.chdir(tmp_path / here)
    assert command_that_resumes(Path(run)) == f"grpo sweep --resume {sweep_dir.path}"


def test_a_run_behind_a_link_belongs_to_the_sweep_in_which_the_link_is(tmp_path: Path) -> None:
    sweep_dir = make(tmp_path / "sweep")
    elsewhere = begin(sweep_dir, 0, 0).path.rename(tmp_path / "elsewhere")
    sweep_dir.run_dir(0, 0).path.symlink_to(elsewhere)
    assert command_that_resumes(sweep_dir.run_dir(0, 0).path) == f"grpo sweep --resume {sweep_dir.path}"


@pytest.mark.parametrize(("allowed", "state"), [(0, "failed"), (1, "finished")])
def test_failed_runs_are_run_again_where_there_are_too_many(tmp_path: Path, allowed: int, state: str) -> None:
    sweep_dir = make(tmp_path / "sweep", failed_runs_allowed=allowed)
    end(sweep_dir, *KEYS[1:])
    end(sweep_dir, KEYS[0], status="failed")
    now = sweep_status(sweep_dir)
    assert now.state == state
    assert now.resume == (f"grpo sweep --resume {sweep_dir.path} --retry-failed" if allowed == 0 else None)


def test_a_sweep_whose_budget_is_spent_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both runs took an hour, one half of it beside the other; the second was resumed three hours later."""
    sweep_dir = make(tmp_path / "sweep", budget={"hours": 1.9})
    for arm, records in enumerate(
        [(("start", 0), ("step", 60)), (("start", 30), ("step", 60), ("resume", 240), ("step", 270))]
    ):
        run_dir = begin(sweep_dir, arm, 0)
        write_json(run_dir.path / MARKER_FILE, {"kind": "run", "created": moment(0 if arm == 0 else 30)})
        journal = Journal(run_dir.journal_file)
        for step, (kind, minute) in enumerate(records):
            monkeypatch.setattr("grpo_core.run.journal.now", lambda minute=minute: moment(minute))
            figures = {"metrics": {"reward/mean": 0.0, "progress/generated_tokens": 1.0}}
            journal.append(kind, step, figures if kind == "step" else {})
        journal.close()
    assert sweep_status(sweep_dir).state == "interrupted"  # 60 + 30 minutes
    again = sweep_dir.sweep_file.read_text().replace('"hours": 1.9', '"hours": 1.5')
    sweep_dir.sweep_file.write_text(again)
    assert sweep_status(sweep_dir).state == "finished"


def moment(minute: int) -> str:
    """Return a time of a journal."""
    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)).isoformat()


def test_a_folder_that_is_no_sweep_has_no_command(tmp_path: Path) -> None:
    sweep_dir = make(tmp_path / "sweep")
    sweep_dir.sweep_file.write_text("{")
    assert command_that_resumes(sweep_dir.path) is None
    assert command_that_resumes(tmp_path / "nowhere") is None
