"""The files in a sweep's folder are read as they were written."""

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.errors import SweepError
from grpo_core.sweep.arms import Arm, Outcome
from tests.support.sweeps import stored_sweep


def test_what_is_written_is_read_back_and_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path)
    assert (stored.id, stored.name, stored.plan.num_runs) == ("id-1", "name", 4)
    values = {"loss.beta": 0.1, "reference.sync_steps": None, "optimizer.adam_betas": [0.9, 0.95]}
    stored.dir.write_arms({3: Arm(number=3, values=values)})
    assert stored.dir.read_arms() == {3: Arm(number=3, values=values)}
    outcome = Outcome(arm=0, seed=1, status="stopped", cause="a rule")
    stored.dir.add_outcome(outcome)
    with stored.dir.outcomes_file.open("a") as file:
        file.write('{"arm": 0, "se')
    assert stored.dir.read_outcomes() == {(0, 1): outcome}


def test_another_sweep_and_a_folder_without_one_are_refused(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path)
    with pytest.raises(SweepError, match="already holds a sweep; `grpo sweep --resume"):
        stored_sweep(tmp_path)
    for content in ("{}", "["):
        stored.dir.sweep_file.write_text(content)
        with pytest.raises(SweepError, match=r"no readable sweep\.json"):
            stored.dir.read()


def test_optuna_is_imported_by_the_study_alone() -> None:
    modules = ("campaign", "report.files", "plan", "status", "folder")
    code = "; ".join([*(f"import grpo_core.sweep.{name}" for name in modules), "import sys; print('optuna' in sys.modules)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
