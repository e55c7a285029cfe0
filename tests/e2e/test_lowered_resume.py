"""A run that is resumed with less at once, by the command, in MLflow and in its reproduction."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.journal import read_journal, read_records
from tests.e2e.test_resume import ROOT, SLOWLY, steps_of, wait_for

pytestmark = pytest.mark.proof
LOWERED = ("training.microbatch_tokens=64", "training.rollout_rows=4")


@pytest.fixture(scope="module")
def stopped(prefect_api: str, tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN_DIR of a run that was stopped after its second step or soon after."""
    folder = tmp_path_factory.mktemp("stopped")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": prefect_api}
    options = ("training.steps=6", "training.checkpoint_every=2", f"rewards=[{{fn: '{SLOWLY}'}}]", "--run-dir", "runs/one")
    command = [sys.executable, "-m", "flows.cli", "train", str(tiny_yaml), *options]
    with (folder / "out").open("wb") as out:
        flow = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
        wait_for(lambda: len(steps_of(folder / "runs" / "one")) >= 2 or flow.poll() is not None, 180)
        flow.send_signal(signal.SIGTERM)
        flow.wait(60)
    assert 2 <= len(steps_of(folder / "runs" / "one")) < 6, (folder / "out").read_text()
    return folder / "runs" / "one"


def test_it_ends_with_less_at_once_and_a_reproduction_is_identical(grpo: Any, stopped: Path) -> None:
    from mlflow import MlflowClient

    folder = stopped.parents[1]
    reached = steps_of(stopped)[-1].step
    done = grpo("train", "--resume", str(stopped), *LOWERED, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "training.microbatch_tokens: 64 from here on, 16384 until now" in done.stdout
    history = read_journal(stopped / "journal.jsonl")
    (resume,) = (record for record in history if record.kind == "resume")
    assert (resume.step, resume.data["passes"]) == (reached, {"microbatch_tokens": 64, "rollout_rows": 4})
    assert [record.step for record in history if record.kind == "step"] == [1, 2, 3, 4, 5, 6]
    run_id = json.loads((stopped / "tracking.json").read_text())["run_id"]
    tracked = json.loads((stopped / "tracking.json").read_text())
    tags = MlflowClient(tracking_uri=tracked["uri"]).get_run(run_id).data.tags
    assert tags["grpo.passes"] == f"after step {reached}: microbatch_tokens 64, rollout_rows 4"
    assert "repeats what it has done up to rounding" in done.stdout
    done = grpo("reproduce", run_id, "--run-dir", "runs/again", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical: " in done.stdout
    assert not [record for record in read_records(folder / "runs" / "again" / "journal.jsonl") if record.kind == "alert"]
