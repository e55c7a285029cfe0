"""The files in a sweep's folder are read as they were written, or refused with what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.errors import SweepError
from grpo_core.sweep.arms import Arm, Outcome
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import make_plan

VALUES = {"loss.beta": 0.1, "reference.sync_steps": None, "optimizer.adam_betas": [0.9, 0.95]}
ENDED = '{"arm": 0, "seed": 1, "status": "stopped", "cause": "a rule"}\n'


@pytest.fixture
def sweep_dir(tmp_path: Path) -> SweepDir:
    """The folder of a new sweep."""
    sweep_dir = SweepDir(tmp_path / "sweep")
    sweep_dir.create(make_plan({"base": "quickstart", "axes": {"loss.beta": [0.01, 0.1]}}), "name", "id-1")
    return sweep_dir


def test_what_is_written_is_read_back(sweep_dir: SweepDir) -> None:
    stored = sweep_dir.read()
    assert (stored.dir, stored.id, stored.name, stored.plan.num_runs) == (sweep_dir, "id-1", "name", 6)
    assert json.loads(sweep_dir.sweep_file.read_text()).keys() == {"id", "name", "sweep", "import_from"}
    sweep_dir.write_arms({3: Arm(number=3, values=VALUES)})
    assert sweep_dir.read_arms() == {3: Arm(number=3, values=VALUES)}
    outcome = Outcome(arm=0, seed=1, status="finished")
    sweep_dir.add_outcome(outcome)
    assert sweep_dir.read_outcomes() == {(0, 1): outcome}


def test_a_torn_last_line_is_dropped(sweep_dir: SweepDir) -> None:
    sweep_dir.outcomes_file.write_text(ENDED + '{"arm": 0, "se')
    assert sweep_dir.read_outcomes() == {(0, 1): Outcome(arm=0, seed=1, status="stopped", cause="a rule")}


@pytest.mark.parametrize("line", ["nonsense", '{"arm": "0", "seed": 1, "status": "finished"}'])
def test_a_line_that_is_no_outcome_is_refused(sweep_dir: SweepDir, line: str) -> None:
    sweep_dir.outcomes_file.write_text(f"{ENDED}{line}\n")
    with pytest.raises(SweepError, match=r"outcomes\.jsonl: not the outcomes of a sweep"):
        sweep_dir.read_outcomes()


@pytest.mark.parametrize("content", ['{"0": 1}', "nonsense"])
def test_arms_that_were_changed_into_something_else_are_refused(sweep_dir: SweepDir, content: str) -> None:
    sweep_dir.arms_file.write_text(content)
    with pytest.raises(SweepError, match=r"arms\.json: not the arms of a sweep"):
        sweep_dir.read_arms()


@pytest.mark.parametrize("content", ["{}", "["])
def test_a_folder_without_a_readable_sweep_is_refused(sweep_dir: SweepDir, content: str) -> None:
    sweep_dir.sweep_file.write_text(content)
    with pytest.raises(SweepError, match=r"no readable sweep\.json"):
        sweep_dir.read()


def test_optuna_is_imported_by_the_study_alone() -> None:
    modules = ("campaign", "report.files", "plan", "status", "folder")
    code = "; ".join([*(f"import grpo_core.sweep.{name}" for name in modules), "import sys; print('optuna' in sys.modules)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
