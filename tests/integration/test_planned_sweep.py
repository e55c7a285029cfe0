"""`grpo sweep FILE --plan` with runs that are there, and the sweep that is then begun: its folder holds what was planned."""

import json
from pathlib import Path

import pytest
import yaml

from grpo_core.errors import SweepError
from tasks.sweep.stages import open_sweep
from tests.support.commands import grpo
from tests.support.sweeps import STEPS, spread_runs, stored_sweep


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sweep file."""
    values = {"base": "sums_tiny_cpu", "overrides": {"training.steps": STEPS}, "axes": {"loss.beta": [0.1, 1.0]}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values | {"objective": {"metric": "reward/mean"}}))
    return tmp_path / "mine.yaml"


def test_a_plan_is_in_the_folder_of_the_sweep_before_its_first_run(file: Path, tmp_path: Path) -> None:
    pilot, folder = spread_runs(tmp_path, 4), tmp_path / "runs" / "new"  # nothing has run here, so there is no runs/
    asked = ("sweep", str(file), "--plan", "--pilot", str(pilot), "--detect", "0.05", "--sweep-dir", str(folder))
    done = grpo(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 settings x 3 seeds = 6 runs, by reward/mean" in done.stdout
    assert "seeds for 0.05" in done.stdout
    assert not folder.exists()
    open_sweep.fn(str(file), {}, folder)
    registered = json.loads((folder / "preregistered.json").read_text())
    assert registered["plan"] == json.loads((folder.parent / "mine.plan.json").read_text())
    assert registered["seeds"] == [0, 1, 2]
    with pytest.raises(SweepError, match="already holds a sweep"):
        open_sweep.fn(str(file), {}, folder)
    assert json.loads((folder / "preregistered.json").read_text()) == registered


@pytest.mark.parametrize("option", [("--pilot", "runs/x"), ("--detect", "0.05")])
def test_what_belongs_to_a_plan_is_refused_without_it(file: Path, tmp_path: Path, option: tuple[str, str]) -> None:
    done = grpo("sweep", str(file), *option, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"error: {option[0]}: belongs to --plan; give that, too\n")


def test_a_search_is_not_planned(tmp_path: Path) -> None:
    values = {"base": "sums_tiny_cpu", "axes": {"loss.beta": {"low": 0.1, "high": 1.0}}, "sampler": "random", "trials": 4}
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(values))
    done = grpo("sweep", "search.yaml", "--plan", cwd=tmp_path)
    fault = "sampler: random chooses its settings as it goes; --plan takes sampler grid"
    assert (done.returncode, done.stderr) == (2, f"error: {fault}\n")


@pytest.mark.parametrize("option", [("--plan",), ("--detect", "0.05"), ("--check",)])
@pytest.mark.parametrize("way", ["--resume", "--extend"])
def test_what_only_looks_runs_nothing_of_a_sweep_that_is_there(tmp_path: Path, way: str, option: tuple[str, ...]) -> None:
    stored = stored_sweep(tmp_path)
    done = grpo("sweep", way, "sweep", *option, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --resume sweep: the sweep keeps its own settings; leave out " + option[0])
    assert list(stored.dir.runs.iterdir()) == []
