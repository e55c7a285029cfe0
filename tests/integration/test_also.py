"""Trackers beside MLflow, fed for real: each holds every figure once, whatever was repeated; none of them ends a run."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from grpo_core.errors import ConfigError
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal, Record, read_records
from grpo_core.run.trackers import require_trackers
from tasks.tracking import Shipper, TrackedRun
from tasks.tracking.also import feeds
from tasks.tracking.databases import ensure_store

KEY, ACCURACY = "kl/ref/drift", "eval/held_out/greedy_accuracy"
Points = dict[str, list[tuple[int, float]]]
EXPECTED: Points = {KEY: [(1, 0.125), (2, 0.25), (3, 0.375), (4, 0.5)], ACCURACY: [(0, 0.5), (4, 0.75)]}


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """trackio reads its folder when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        yield


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> TrackedRun:
    store = tmp_path_factory.mktemp("store") / "mlflow.db"
    ensure_store(store)
    uri = f"sqlite:///{store}"
    client = MlflowClient(tracking_uri=uri)
    return TrackedRun(uri=uri, experiment_id="0", run_id=client.create_run("0").info.run_id, name="β=0.1 G=8")


@pytest.fixture
def records(tmp_path: Path) -> list[Record]:
    """An evaluation, steps 1 to 3, a resume at 1, steps 2 to 4 with other figures for 2 and 3, an evaluation."""
    journal = Journal(tmp_path / "journal.jsonl")

    def append(kind: Any, step: int, value: float) -> None:
        metrics = {KEY: value, "progress/step": float(step)} if kind == "step" else {ACCURACY: value}
        journal.append(kind, step, {"metrics": metrics, **({"set": "held_out"} if kind == "eval" else {})})

    append("eval", 0, 0.5)
    for step in (1, 2, 3):
        append("step", step, step / 8)
    journal.append("resume", 1, {})
    for step, value in ((2, 9.0), (3, 9.0), (4, 0.5)):
        append("step", step, value)
    append("eval", 4, 0.75)
    journal.close()
    return read_records(tmp_path / "journal.jsonl")


def session(run_dir: RunDir, tracked: TrackedRun, records: list[Record]) -> list[str]:
    """Ship records as a monitor does; return what the trackers report."""
    also = feeds(run_dir, tracked)
    shipper = Shipper(tracked, also)
    for record in records:
        shipper.add(record)
    assert shipper.ship_all(60) == 0
    return [line for feed in also for line in feed.news]


def of_tensorboard(run_dir: RunDir, tracked: TrackedRun) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run_dir.path / "tensorboard"))
    found.Reload()
    return {tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def of_trackio(run_dir: RunDir, tracked: TrackedRun) -> Points:
    from trackio.sqlite_storage import SQLiteStorage

    points: Points = defaultdict(list)
    for row in SQLiteStorage.get_logs("my-runs", tracked.name, run_id=tracked.run_id):
        for key in set(row) & {KEY, ACCURACY}:
            points[key].append((row["step"], row[key]))
    return points


def of_wandb(run_dir: RunDir, tracked: TrackedRun) -> Points:
    """Read the newest session's file: a log of LevelDB, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record as Row

    content = max(run_dir.path.glob("wandb/offline-run-*/*.wandb"), key=os.path.getmtime).read_bytes()
    points, at = defaultdict[str, list[tuple[int, float]]](list), 7
    while at + 7 <= len(content):
        size = int.from_bytes(content[at + 4 : at + 6], "little")
        row, at = Row.FromString(content[at + 7 : at + 7 + size]), at + 7 + size
        figures = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row.history.item}
        for key in set(figures) & {KEY, ACCURACY}:
            points[key].append((figures["progress/step"], figures[key]))
    return points


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_holds_each_figure_once_whatever_is_repeated(
    name: str, tracked: TrackedRun, tmp_path: Path, tiny_config: Any, records: list[Record]
) -> None:
    pytest.importorskip(name)
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(tiny_config({"tracking.also": [name], "tracking.experiment": "my runs"}))
    held = {"tensorboard": of_tensorboard, "trackio": of_trackio, "wandb": of_wandb}[name]
    lines = session(run_dir, tracked, records[:4])
    assert len(lines) == 1
    assert lines[0].startswith(f"{name}: ")
    run_dir.also_file.unlink()  # as after a kill between the last record and the note that it has arrived
    session(run_dir, tracked, records[:6])
    session(run_dir, tracked, records)
    found = held(run_dir, tracked)
    assert {key: found[key] for key in EXPECTED} == EXPECTED
    assert session(run_dir, tracked, records) == []  # nothing is new, so nothing is opened


def test_a_tracker_that_fails_is_reported_and_catches_up(
    tracked: TrackedRun, tmp_path: Path, tiny_config: Any, records: list[Record]
) -> None:
    pytest.importorskip("tensorboard")
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(tiny_config({"tracking.also": ["tensorboard"]}))
    (run_dir.path / "tensorboard").write_text("a file in its place")
    (line,) = session(run_dir, tracked, records)
    assert line.startswith("tensorboard: ")
    assert line.endswith("the training continues without it")
    (run_dir.path / "tensorboard").unlink()
    session(run_dir, tracked, records)
    assert of_tensorboard(run_dir, tracked)[KEY] == EXPECTED[KEY]


@pytest.mark.parametrize("lies_here", ["nothing", "a folder of that name"])
def test_a_tracker_that_is_not_installed_is_refused_with_the_way_on(
    lies_here: str, tmp_path: Path, tiny_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config({"tracking.also": ["trackio"]})
    (tmp_path / ("trackio" if lies_here != "nothing" else "other")).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    with pytest.raises(
        ConfigError, match=r"^tracking.also: trackio is not installed here; `pip install 'grpo-flow\[trackio\]'`"
    ):
        require_trackers(config)


def test_wandb_without_a_login_is_refused_before_anything_starts(
    tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # it reads the environment once
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^tracking.also: wandb .*it has no login.*WANDB_MODE=offline"):
        require_trackers(tiny_config({"tracking.also": ["wandb"]}))
    wandb.teardown()
    monkeypatch.setenv("WANDB_MODE", "offline")
    require_trackers(tiny_config({"tracking.also": ["wandb"]}))
