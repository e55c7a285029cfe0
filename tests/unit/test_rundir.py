"""RUN_DIR: ours by a marker, held by one flow; a run is never overwritten, a start that failed is."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import RunConfig
from grpo_core.errors import FolderError, JournalError
from grpo_core.run.flow_folder import MARKER_FILE, named_folder
from grpo_core.run.folder import RunDir, add_alert
from grpo_core.run.journal import Journal
from grpo_core.run.resuming import new_run
from grpo_core.run.summary import all_alerts
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import make_plan


def test_alerts_of_training_and_monitor_are_one_story_in_the_order_of_the_steps(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    journal = Journal(run_dir.journal_file)
    records = [journal.append("alert", step, {"text": f"training {step}"}) for step in (2, 3)]
    records.append(journal.append("alert", 3, {"text": "cut", "repaired": "cut"}))
    journal.close()
    for step in (3, 1, 2):
        add_alert(run_dir, step, f"monitor {step}")
    assert all_alerts(run_dir, records) == ("monitor 1", "training 2", "monitor 2", "training 3", "monitor 3")


def test_a_configuration_is_resolved_once_and_never_stale(tmp_path: Path, tiny_config: Callable[..., Any]) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(tiny_config())
    assert run_dir.read_config() is RunDir(run_dir.path).read_config()
    run_dir.config_file.write_text(run_dir.config_file.read_text().replace('"beta": ', '"beta": 1'))
    assert run_dir.read_config().loss.beta >= 1


@pytest.mark.parametrize("what", ["journal.jsonl", "checkpoints"])
def test_a_run_is_never_overwritten(tmp_path: Path, what: str) -> None:
    """Checkpoints without a journal are one, too: a new run must not go on from them."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(RunConfig())
    (run_dir.path / what).mkdir()
    for take in (lambda: run_dir.create(RunConfig()), run_dir.forget_start):
        with pytest.raises(JournalError, match="already holds a run"):
            take()


def test_a_start_that_came_to_nothing_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """Its provenance, above all: the next would pass for a run that goes on with another model."""
    run_dir = RunDir(tmp_path / "run")
    with new_run(run_dir.path, "x", "reproduction"):
        run_dir.create(RunConfig(), kind="reproduction")
    leftovers = [run_dir.provenance_file, run_dir.tracking_file, run_dir.flow_run_file, run_dir.data / "manifest.json"]
    leftovers += [run_dir.original / "config.json", run_dir.eval / "base.parquet", run_dir.alerts_file]
    for file in leftovers:
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
    with new_run(run_dir.path, "x", "run"):
        run_dir.create(RunConfig.model_validate({"loss": {"beta": 0.5}}))
    assert [file.name for file in leftovers if file.exists()] == []
    assert run_dir.read_config().loss.beta == 0.5
    assert run_dir.kind == "run"


def test_places_that_are_never_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, file = tmp_path / "home", tmp_path / "file"
    home.mkdir()
    file.write_text("x")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    places = {
        "/": "the root or home folder",
        str(home): "the root or home folder",
        "~/runs": "is not expanded",
        ".": "neither empty nor",
        str(file): "cannot be written",
        str(file / "below"): "cannot be written",
    }
    for place, reason in places.items():
        with pytest.raises(FolderError, match=reason):
            RunDir(Path(place)).create(RunConfig())
    assert list(home.iterdir()) == []


def test_a_run_is_no_sweep_and_a_sweep_is_no_run(tmp_path: Path) -> None:
    plan = make_plan({"base": "quickstart", "axes": {"loss.beta": [0.0, 0.1]}, "seeds": [0]})
    RunDir(tmp_path / "run").create(RunConfig())
    SweepDir(tmp_path / "sweep").create(plan, "s", "s-1")
    with pytest.raises(FolderError, match="is the folder of a run"):
        SweepDir(tmp_path / "run").create(plan, "s", "s-1")
    with pytest.raises(FolderError, match="is the folder of a sweep"):
        RunDir(tmp_path / "sweep").create(RunConfig())
    RunDir(tmp_path / "sweep" / "runs" / "arm-000-seed-0").create(RunConfig())


@pytest.mark.parametrize("number", [1, 3])
def test_a_folder_of_another_version_is_refused(tmp_path: Path, number: int) -> None:
    (tmp_path / MARKER_FILE).write_text(f'{{"kind": "run", "format": {number}, "more": {{}}}}')
    with pytest.raises(FolderError, match="another version of grpo-flow"):
        RunDir(tmp_path).require_ours()


def test_a_run_keeps_its_number_and_a_folder_of_that_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_config: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FolderError, match="last: runs/ has no such run"):
        named_folder("last")
    for name in ("one", "two", "three"):
        RunDir(Path("runs", name)).create(tiny_config({}))
    RunDir(Path("runs", "asked")).create(tiny_config({}), kind="evaluation")
    shutil.rmtree("runs/one")
    assert [named_folder(name) for name in ("2", "3@40", "last")] == ["runs/two", "runs/three@40", "runs/three"]
    assert [named_folder(name) for name in ("runs/two", "0" * 32)] == ["runs/two", "0" * 32]  # a path, an id of MLflow
    with pytest.raises(FolderError, match=r"1: runs/ has no such run; .* `grpo runs` lists"):
        named_folder("1")
    shutil.copytree("runs/two", "runs/copy")
    with pytest.raises(FolderError, match="2: is the number of runs/copy and runs/two"):
        named_folder("2")
    Path("2").mkdir()
    assert named_folder("2") == "2"
    # Whatever lies beside it, as in a folder that others write to, a run gets a number, and `last` is a run.
    for name, number in (("text", '"many"'), ("none", "null"), ("huge", "1e99")):
        Path("runs", name).mkdir()
        Path("runs", name, MARKER_FILE).write_text(f'{{"kind": "run", "number": {number}}}')
    RunDir(Path("runs", "four")).create(tiny_config({}))
    assert [named_folder(name) for name in ("4", "last")] == ["runs/four"] * 2


def test_two_flows_never_work_in_one_folder(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(RunConfig())
    with run_dir.locked(), pytest.raises(FolderError, match=f"process {os.getpid()} works on this run"):
        run_dir.locked()
    run_dir.locked().close()  # it is free again
