"""`grpo fork` by the id that MLflow gave a run: what it needs it takes from there, and both runs know of each other."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.journal import is_inherited, read_journal
from tasks.tracking.store import make_client

pytestmark = pytest.mark.proof


def test_a_run_is_forked_from_mlflow_alone(grpo: Any, finished_run: Any, tmp_path: Path) -> None:
    run_dir = finished_run[0]
    tracked = json.loads((run_dir / "tracking.json").read_text())
    hidden = run_dir.rename(run_dir.with_name("hidden"))  # nothing but MLflow is left of it
    try:
        done = grpo("fork", tracked["run_id"], "--at", "2", "loss.beta=0.5", cwd=tmp_path, MLFLOW_TRACKING_URI=tracked["uri"])
    finally:
        hidden.rename(run_dir)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"forked from {tracked['run_id']} at step 2" in done.stdout
    assert "steps 1 to 2 are run again first" in done.stdout  # MLflow keeps no checkpoint
    (fork,) = tmp_path.glob("runs/*/journal.jsonl")
    steps = [record for record in read_journal(fork) if record.kind == "step"]
    assert [(record.step, is_inherited(record)) for record in steps] == [(1, True), (2, True), (3, False), (4, False)]
    own, client = json.loads((fork.parent / "tracking.json").read_text()), make_client(tracked["uri"])
    tags = client.get_run(own["run_id"]).data.tags
    assert (tags["forked_from"], tags["fork_step"]) == (tracked["run_id"], "2")
    assert "loss.beta 0.04 -> 0.5" in client.get_run(tracked["run_id"]).data.tags[f"fork.{own['run_id']}"]
    assert [metric.step for metric in client.get_metric_history(own["run_id"], "kl/ref/drift")] == [1, 2, 3, 4]
