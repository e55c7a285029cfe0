"""The whole flow with a server that is killed in the middle: nothing is missing in MLflow, the run is the undisturbed one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config import apply_overrides
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from tests.conftest import build_values
from tests.vllm.conftest import PYTHON, ROOT

STEPS = 6


@pytest.fixture
def folder(own_model: Path, tmp_path: Path) -> Path:
    """A working folder with small.yaml, a run of a few steps with a server of its own."""
    options = {
        "rollout.engine": "vllm",
        "rollout.vllm.kv_cache_gib": 1,
        "model.dtype": "float32",
        "model.source": str(own_model),
        "training.steps": STEPS,
        "rollout.max_prompt_tokens": 120,
        "reference.sync_steps": 2,
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(apply_overrides(build_values(own_model), options)))
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GRPO_VLLM_PYTHON": str(PYTHON),
        "PREFECT_HOME": str(folder / "prefect"),
    }
    line = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.Popen(line, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def kill_the_server_after(step: int, run: subprocess.Popen[str], run_dir: RunDir, own_model: Path) -> None:
    deadline = time.monotonic() + 300
    while not (run_dir.journal_file.exists() and f'"kind":"step","step":{step},' in run_dir.journal_file.read_text()):
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found = subprocess.run(["pgrep", "-f", f"api_server.*{own_model}"], capture_output=True, text=True, check=True)
    (process,) = {int(number) for number in found.stdout.split()}
    os.killpg(process, signal.SIGKILL)


def histories(run_dir: RunDir, keys: list[str]) -> dict[str, list[tuple[int, float]]]:
    from mlflow import MlflowClient

    tracked = json.loads((run_dir.path / "tracking.json").read_text())
    client = MlflowClient(tracking_uri=tracked["uri"])
    found = {key: client.get_metric_history(tracked["run_id"], key) for key in keys}
    return {key: [(metric.step, metric.value) for metric in history] for key, history in found.items()}


def test_a_server_killed_in_the_middle_costs_nothing_but_time(folder: Path, own_model: Path) -> None:
    run_dir = RunDir(folder / "runs" / "one")
    run = command(folder, "train", "small.yaml", "--run-dir", "runs/one")
    kill_the_server_after(2, run, run_dir, own_model)
    output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output
    assert "memory: vLLM takes up to" in output
    assert "starting the vLLM server again for the same step" in (run_dir.path / "train.log").read_text()

    records = read_journal(run_dir.journal_file)
    assert [record for record in records if record.kind == "alert"] == []
    steps: list[dict[str, Any]] = [record.metrics for record in records if record.kind == "step"]
    assert len(steps) == STEPS
    assert max(step["kl/sampler/k3"] for step in steps) < 1e-6
    keys = sorted(set.intersection(*map(set, steps)))
    assert {"kl/ref/drift", "reward/mean", "kl/sampler/k3"} < set(keys)
    assert histories(run_dir, keys) == {key: [(number, step[key]) for number, step in enumerate(steps, 1)] for key in keys}

    again = command(folder, "reproduce", "runs/one", "--run-dir", "runs/again")
    output, _ = again.communicate(timeout=600)
    assert again.returncode == 0, output
    assert "the run repeats the same tokens" in output
    assert "identical: " in output
    assert "the same weights, bit for bit" in output
    left = subprocess.run(["pgrep", "-f", str(own_model)], capture_output=True, text=True, check=False).stdout
    assert left == ""
