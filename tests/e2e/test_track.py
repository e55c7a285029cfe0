"""`grpo track`: a journal reaches MLflow later, each figure once."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.journal import Journal, read_journal

pytestmark = pytest.mark.proof

STEPS = 4


@pytest.fixture
def untracked(finished_run: Any, tmp_path: Path) -> Path:
    """A finished run whose MLflow run, in a store of its own, holds nothing yet."""
    from mlflow import MlflowClient

    run = tmp_path / "run"
    shutil.copytree(finished_run[0], run)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("later", artifact_location=(tmp_path / "mlartifacts").as_uri())
    created = client.create_run(experiment, run_name="later")
    facts = {"uri": uri, "experiment_id": experiment, "run_id": created.info.run_id, "name": "later"}
    (run / "tracking.json").write_text(json.dumps(facts))
    return run


def tracked_run(run: Path) -> tuple[Any, str]:
    from mlflow import MlflowClient

    facts = json.loads((run / "tracking.json").read_text())
    return MlflowClient(tracking_uri=facts["uri"]), facts["run_id"]


def test_every_figure_arrives_once_however_often_it_is_done(grpo: Any, untracked: Path) -> None:
    for _ in range(2):
        done = grpo("track", str(untracked), cwd=untracked.parent)
        assert done.returncode == 0, done.stderr
        assert "later: FINISHED" in done.stdout
    client, run_id = tracked_run(untracked)
    assert client.get_run(run_id).info.status == "FINISHED"
    records = [record for record in read_journal(untracked / "journal.jsonl") if record.kind == "step"]
    for key in records[0].metrics:
        history = client.get_metric_history(run_id, key)
        assert [metric.step for metric in history] == list(range(1, STEPS + 1)), key
    times = {metric.timestamp for metric in client.get_metric_history(run_id, "kl/ref/drift")}
    assert times == {record.timestamp_ms for record in records}
    assert "journal.jsonl" in {file.path for file in client.list_artifacts(run_id)}


def test_a_run_under_way_or_never_tracked_is_refused(grpo: Any, untracked: Path) -> None:
    journal = Journal(untracked / "journal.jsonl")
    done = grpo("track", str(untracked), cwd=untracked.parent)
    assert done.returncode == 2
    assert "works on this run; its own monitor ships it" in done.stderr
    journal.close()
    (untracked / "tracking.json").unlink()
    done = grpo("track", str(untracked), cwd=untracked.parent)
    assert done.returncode == 2
    assert "has no readable tracking.json" in done.stderr
