"""The files in a sweep's folder are read as earlier versions wrote them, or refused with what is wrong."""

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
ENDED = '{"arm": 0, "seed": 1, "status": "stopped", "cause": "a rule", "wall_seconds": 12.5}\n'


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
    outcome = Outcome(arm=0, seed=1, status="finished", wall_seconds=2.0)
    sweep_dir.add_outcome(outcome)
    assert sweep_dir.read_outcomes() == {(0, 1): outcome}
    with sweep_dir.session():
        assert len(sweep_dir.sessions()) == 1


def test_lines_of_an_earlier_version_are_read_and_a_torn_last_line_is_dropped(sweep_dir: SweepDir) -> None:
    sweep_dir.outcomes_file.write_text(ENDED + '{"arm": 0, "se')
    assert sweep_dir.read_outcomes() == {
        (0, 1): Outcome(arm=0, seed=1, status="stopped", cause="a rule", wall_seconds=12.5),
    }
    sweep_dir.sessions_file.write_text("[[100.0, 160.0], [200.0, 230.5]]")
    assert sweep_dir.elapsed_seconds() == 90.5
    sweep_dir.begun_file.write_text('{"arm": 0, "seed": 1, "time": 110.0}\ndamaged\n{"arm": 0, "seed": 1, "time": 205.0}\n')
    # 110 to the last sign of life at 160, then from 205 on.
    assert sweep_dir.wall_seconds(0, 1) > 50.0


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{}", "arm: field required"),
        ("[]", "input should be an object"),
        ("nonsense", "invalid JSON"),
        ('{"arm": "0", "seed": 1, "status": "finished"}', "arm: input should be a valid integer, not a text, got '0'"),
        ('{"arm": -1, "seed": 1, "status": "finished"}', "arm: input should be greater than or equal to 0, got -1"),
        ('{"arm": true, "seed": 1, "status": "finished"}', "arm: input should be a valid integer"),
        ('{"arm": 0, "seed": 1, "status": "finished", "wall_seconds": NaN}', "wall_seconds"),
        ('{"arm": 0, "seed": 1, "status": "finished", "wal_seconds": 1.0}', "wal_seconds: unknown key; did you mean"),
    ],
)
def test_a_line_that_is_no_outcome_is_refused_by_number_and_key(sweep_dir: SweepDir, line: str, fault: str) -> None:
    sweep_dir.outcomes_file.write_text(f"{ENDED}{line}\n")
    with pytest.raises(SweepError, match=r"outcomes\.jsonl, line 2: not an outcome") as caught:
        sweep_dir.read_outcomes()
    assert fault in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", ["[]", '{"a": {}}', '{"0": 1}', "nonsense"])
def test_arms_that_were_changed_into_something_else_are_refused(sweep_dir: SweepDir, content: str) -> None:
    sweep_dir.arms_file.write_text(content)
    with pytest.raises(SweepError, match=r"arms\.json: not the arms of a sweep"):
        sweep_dir.read_arms()


@pytest.mark.parametrize("content", ["{}", '{"id": "a", "name": "b", "sweep": {}}', '{"id": 1, "name": "b", "sweep": {}}', "["])
def test_a_folder_without_a_readable_sweep_is_refused(sweep_dir: SweepDir, content: str) -> None:
    sweep_dir.sweep_file.write_text(content)
    with pytest.raises(SweepError, match=r"no readable sweep\.json"):
        sweep_dir.read()


def test_optuna_is_imported_by_the_study_alone() -> None:
    modules = ("campaign", "report.files", "plan", "progress", "folder")
    code = "; ".join([*(f"import grpo_core.sweep.{name}" for name in modules), "import sys; print('optuna' in sys.modules)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
