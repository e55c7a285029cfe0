"""The MLflow run of a training that goes on: found again, also at another address, or made anew where it is gone."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import open_tracking
from tasks.tracking.store import TrackedRun, make_client, read_tracked


@pytest.fixture
def opened(tiny_run: Any, tmp_path: Path) -> tuple[Any, TrackedRun]:
    """(RUN_DIR, its run in a SQLite store)."""
    run_dir = tiny_run({"tracking.uri": f"sqlite:///{tmp_path / 'mlflow.db'}"})
    return run_dir, open_tracking.fn(run_dir.path)


def test_a_run_that_goes_on_keeps_its_mlflow_run_which_runs_again(opened: tuple[Any, TrackedRun]) -> None:
    run_dir, tracked = opened
    client = make_client(tracked.uri)
    client.set_tag(tracked.run_id, "grpo.stop", "enough")
    client.set_terminated(tracked.run_id, "KILLED")
    assert open_tracking.fn(run_dir.path) == tracked
    run = client.get_run(tracked.run_id)
    assert run.info.status == "RUNNING"
    assert "grpo.stop" not in run.data.tags  # it would end the training at once
    assert run.data.params["loss.beta"] == "0.04"


def test_a_fork_names_its_parent(tiny_run: Any, tmp_path: Path) -> None:
    run_dir = tiny_run({"tracking.uri": f"sqlite:///{tmp_path / 'mlflow.db'}"})
    begun = {"run": "/runs/one", "mlflow_run_id": "abc", "step": 40, "changed": "loss.beta 0.1 -> 0.04"}
    run_dir.origin_file.write_text(json.dumps({"preset": "tiny", "forked_from": begun}))
    tracked = open_tracking.fn(run_dir.path)
    tags = make_client(tracked.uri).get_run(tracked.run_id).data.tags
    assert (tags["forked_from"], tags["fork_step"]) == ("abc", "40")
    assert tracked.name == "β 0.04 · G 4 · sync 2 · s0 · fork of one@40"
    assert "Forked from `/runs/one` at step 40." in tags["mlflow.note.content"]


def test_a_deleted_mlflow_run_is_replaced(opened: tuple[Any, TrackedRun]) -> None:
    run_dir, tracked = opened
    make_client(tracked.uri).delete_run(tracked.run_id)
    again = open_tracking.fn(run_dir.path)
    assert again.run_id != tracked.run_id
    assert read_tracked(run_dir) == again


def test_a_server_that_came_up_at_another_address_has_the_same_run(opened: tuple[Any, TrackedRun]) -> None:
    run_dir, tracked = opened
    facts = json.loads(run_dir.tracking_file.read_text())
    run_dir.tracking_file.write_text(json.dumps({**facts, "uri": "http://127.0.0.1:9"}))
    assert open_tracking.fn(run_dir.path) == tracked
    assert read_tracked(run_dir) == tracked
