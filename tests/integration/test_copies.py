"""Two folders never write one MLflow run: a folder that was moved keeps its run, a copy beside its original gets its own."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import TrackingError
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from tasks.run.reporting import report_run_again
from tasks.sweep.stages import report_again
from tasks.tracking import open_tracking
from tasks.tracking.registry import find_tracked
from tasks.tracking.store import TrackedRun, make_client, read_tracked
from tasks.tracking.sweep import track_sweep
from tasks.tracking.training import track_later
from tests.integration.test_training import train
from tests.support.sweeps import stored_sweep

pytestmark = pytest.mark.proof


@pytest.fixture
def opened(tiny_run: Any, tmp_path: Path) -> tuple[RunDir, TrackedRun]:
    """(RUN_DIR, its run in a SQLite store)."""
    run_dir = tiny_run({"tracking.uri": f"sqlite:///{tmp_path / 'mlflow.db'}"})
    return run_dir, open_tracking.fn(run_dir.path)


def copy_of(run_dir: RunDir, name: str = "copy") -> RunDir:
    return RunDir(Path(shutil.copytree(run_dir.path, run_dir.path.with_name(name))))


def tags_of(tracked: TrackedRun) -> dict[str, str]:
    return dict(make_client(tracked.uri).get_run(tracked.run_id).data.tags)


@pytest.mark.parametrize("is_first", [True, False], ids=["copy first", "original first"])
def test_a_copy_beside_its_original_gets_a_run_of_its_own(
    opened: tuple[RunDir, TrackedRun], is_first: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    original, tracked = opened
    copy = copy_of(original)
    found = {run_dir: open_tracking.fn(run_dir.path) for run_dir in ((copy, original) if is_first else (original, copy))}
    assert found[original] == tracked
    assert found[copy].run_id != tracked.run_id
    assert tags_of(found[copy])["grpo.copy_of"] == tracked.run_id
    assert tags_of(found[copy])["run_dir"] == str(copy.path)
    line = f"MLflow run {tracked.run_id} belongs to {original.path}; this copy gets a run of its own\n"
    assert capsys.readouterr().out == line
    # And both keep what they have.
    assert {run_dir: open_tracking.fn(run_dir.path) for run_dir in found} == found


def test_a_folder_that_was_moved_keeps_its_run(opened: tuple[RunDir, TrackedRun]) -> None:
    run_dir, tracked = opened
    moved = RunDir(run_dir.path.rename(run_dir.path.with_name("moved")))
    assert open_tracking.fn(moved.path) == tracked
    assert tags_of(tracked)["run_dir"] == str(moved.path)
    run_dir.path.symlink_to(moved.path)  # the same folder under its old name is no copy
    assert open_tracking.fn(run_dir.path) == tracked


def points(tracked: TrackedRun, run_dir: RunDir) -> Counter[tuple[str, int]]:
    """Return how often MLflow holds each figure of a journal."""
    client = make_client(tracked.uri)
    keys = {key for record in read_journal(run_dir.journal_file) for key in record.metrics}
    return Counter((key, point.step) for key in keys for point in client.get_metric_history(tracked.run_id, key))


def test_reports_exports_and_track_of_a_copy_leave_the_run_of_the_original_alone(opened: tuple[RunDir, TrackedRun]) -> None:
    original, tracked = opened
    train(original)
    copy, client = copy_of(original), make_client(tracked.uri)
    _, _, problems = report_run_again(copy.path)
    assert f"its MLflow run {tracked.run_id} belongs to {original.path}" in problems[0]
    assert client.list_artifacts(tracked.run_id) == []
    with pytest.raises(TrackingError, match=f"belongs to {original.path}"):
        find_tracked(copy)
    own, status, problems = track_later(copy.path)
    assert (status, problems) == ("FINISHED", ())
    assert read_tracked(copy) == own == find_tracked(copy)
    assert report_run_again(copy.path)[2] == ()
    assert client.get_run(tracked.run_id).data.metrics == {}
    assert track_later(original.path)[0] == tracked
    expected = {(key, record.step) for record in read_journal(original.journal_file) for key in record.metrics}
    for run, run_dir in ((own, copy), (tracked, original)):
        assert points(run, run_dir) == dict.fromkeys(expected, 1)


def test_a_copied_sweep_is_refused(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    stored = stored_sweep(tmp_path, overrides={"training.steps": 2, "tracking.uri": uri})
    tracked = track_sweep.fn(stored)
    copy = type(stored.dir)(Path(shutil.copytree(stored.dir.path, tmp_path / "copy")))
    whose = f"sweep dir {copy.path}: its MLflow run {tracked.run_id} belongs to {stored.dir.path}"
    with pytest.raises(TrackingError, match=f"{whose}; resume that one"):
        track_sweep.fn(copy.read())
    assert any(f"the report is not in MLflow ({whose}" in problem for problem in report_again(copy.path)[2])
    assert make_client(uri).list_artifacts(tracked.run_id) == []
    assert track_sweep.fn(stored) == tracked
    moved = type(copy)(stored.dir.path.rename(tmp_path / "moved"))
    assert track_sweep.fn(moved.read()) == tracked
    assert tags_of(tracked)["sweep_dir"] == str(moved.path)
