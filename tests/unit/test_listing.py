"""A folder of runs as a table: what is in it, and how often its journals are read."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo_core.compare.comparison import compare_sources
from grpo_core.compare.files import write_comparison
from grpo_core.compare.runs import Source
from grpo_core.run import integrity
from grpo_core.run.folder import RunDir
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.status import list_folders
from tests.compared import write_compared
from tests.unit.test_sweep_status import make


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with an interrupted run, and an interrupted sweep of two runs."""
    folder = tmp_path / "runs"
    write_compared(folder / "run", steps=2, end=None)
    sweep_dir = make(folder / "sweep")
    for arm, correct in ((0, [True, False]), (1, [True, True])):
        write_compared(sweep_dir.run_dir(arm, 0).path, {"loss.beta": (0.01, 0.1)[arm]}, steps=2, correct=correct)
    return folder


def test_comparisons_are_left_out(runs: Path) -> None:
    comparison = compare_sources([Source(given="run", path=runs / "run")])
    write_comparison(comparison, runs / "comparison")
    assert {(entry.path.name, entry.kind, entry.state) for entry in list_folders(runs)} == {
        ("run", "run", "died"),
        ("sweep", "sweep", "interrupted"),
    }


def test_a_sweep_has_the_best_accuracy_of_its_runs_that_can_be_read(runs: Path) -> None:
    def accuracy() -> float | None:
        return next(entry.accuracy for entry in list_folders(runs) if entry.kind == "sweep")

    assert accuracy() == 1.0
    SweepDir(runs / "sweep").run_dir(1, 0).journal_file.write_text("{\n")
    assert accuracy() == 0.5


def test_a_run_that_has_lost_its_configuration_is_damaged(runs: Path) -> None:
    RunDir(runs / "run").config_file.unlink()
    (entry,) = (entry for entry in list_folders(runs) if entry.kind == "run")
    assert "no readable config.json" in str(entry.fault)


def test_a_journal_that_never_ends_stops_no_listing(runs: Path) -> None:
    RunDir(runs / "run").journal_file.unlink()
    os.mkfifo(RunDir(runs / "run").journal_file)
    faults = {entry.path.name: entry.fault for entry in list_folders(runs)}
    assert faults["sweep"] is None
    assert "not a regular file" in str(faults["run"])


@pytest.mark.parametrize("folder", ["sweep", "sweep/runs"])
def test_the_runs_of_a_sweep_are_resumed_by_the_sweep(runs: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    SweepDir(runs / "sweep").run_dir(1, 0).flow_run_file.touch()  # its flow has not written its report
    monkeypatch.chdir(runs)
    listed = {entry.path.name: entry.resume for entry in list_folders(Path(folder))}
    assert listed == {"arm-000-seed-0": None, "arm-001-seed-0": f"grpo sweep --resume {runs / 'sweep'}"}


def test_each_journal_is_read_once(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, read_regular = Counter[Path](), integrity.read_regular

    def counted(path: Path) -> Any:
        read[path] += 1
        return read_regular(path)

    monkeypatch.setattr(integrity, "read_regular", counted)
    list_folders(runs)
    list_folders(runs / "sweep")
    sweep_dir = SweepDir(runs / "sweep")
    journals = [RunDir(runs / "run").journal_file, *(sweep_dir.run_dir(arm, 0).journal_file for arm in (0, 1))]
    assert [read[path] for path in journals] == [1, 2, 2]  # those of the sweep in each of the two lists
