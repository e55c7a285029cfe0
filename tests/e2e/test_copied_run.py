"""A stopped run is copied and both folders are resumed at the same time: two MLflow runs, every point once in each."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.comparison import compare_journals
from grpo_core.run.journal import read_journal

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
STEPS = 9
OPTIONS = (f"training.steps={STEPS}", "evaluation.every_steps=null", "rewards=[{fn: 'tests.e2e.slow_reward:slowly'}]")


def start(folder: Path, prefect_api: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": prefect_api}
    command = [sys.executable, "-m", "flows.cli", "train", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_both_are_resumed_at_once(prefect_api: str, tiny_yaml: Path, tmp_path: Path) -> None:
    original, copy = tmp_path / "runs" / "one", tmp_path / "runs" / "copy"
    stopped = start(tmp_path, prefect_api, str(tiny_yaml), *OPTIONS, "--run-dir", str(original))
    deadline = time.monotonic() + 240
    while not (original / "journal.jsonl").exists() or '"kind":"step"' not in (original / "journal.jsonl").read_text():
        assert time.monotonic() < deadline
        assert stopped.poll() is None, stopped.communicate()
        time.sleep(0.1)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.communicate(timeout=240)[0].count(f"step {STEPS}/{STEPS}") == 0
    shutil.copytree(original, copy)
    known = json.loads((original / "tracking.json").read_text())
    resumed = {run: start(tmp_path, prefect_api, "--resume", str(run)) for run in (copy, original)}
    output = {run: command.communicate(timeout=240)[0] for run, command in resumed.items()}
    for run, command in resumed.items():
        assert command.returncode == 0, output[run]
        assert (f"MLflow run {known['run_id']} belongs to {original}; this copy gets" in output[run]) == (run == copy)
    assert compare_journals(read_journal(original / "journal.jsonl"), read_journal(copy / "journal.jsonl")).is_identical
    check_points({run: json.loads((run / "tracking.json").read_text()) for run in resumed}, known)


def check_points(tracked: dict[Path, Any], known: Any) -> None:
    """Each folder has an MLflow run, the copy's another than before, which holds every point of its journal once."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=known["uri"])
    found = {run.info.run_id: run for run in client.search_runs([known["experiment_id"]])}
    assert [facts["run_id"] == known["run_id"] for facts in tracked.values()] == [False, True]
    assert found.keys() == {facts["run_id"] for facts in tracked.values()}
    for folder, facts in tracked.items():
        run_id = facts["run_id"]
        assert found[run_id].info.status == "FINISHED"
        assert found[run_id].data.tags["run_dir"] == str(folder)
        expected = {(key, record.step) for record in read_journal(folder / "journal.jsonl") for key in record.metrics}
        points = (point for key in {key for key, _ in expected} for point in client.get_metric_history(run_id, key))
        assert Counter((point.key, point.step) for point in points) == dict.fromkeys(expected, 1)
