"""What a run left behind in the workers' volume and in MLflow, read from outside of the containers."""

import json
import subprocess
from pathlib import Path

import pytest

from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from tasks.tracking.store import TrackedRun
from tests.compose.stack import ComposeStack
from tests.torture.history import count_points, history_differences


def volume(stack: ComposeStack, name: str) -> Path:
    command = ["podman", "volume", "inspect", "--format", "{{.Mountpoint}}", f"{stack.project}_{name}"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def run_dir_of(stack: ComposeStack, name: str) -> RunDir:
    return RunDir(volume(stack, "runs") / name)


def steps(run_dir: RunDir) -> list[int]:
    """Return the steps that count, in order; none where there is no journal yet."""
    if not run_dir.journal_file.exists():
        return []
    return [record.step for record in read_journal(run_dir.journal_file) if record.kind == "step"]


def problems(stack: ComposeStack, run_dir: RunDir, count: int) -> list[str]:
    """Return what a run of so many steps lacks in its journal and in MLflow, and what is there twice."""
    found = [] if steps(run_dir) == list(range(1, count + 1)) else [f"journal: steps {steps(run_dir)}"]
    facts = json.loads((run_dir.path / "tracking.json").read_text())
    tracked = TrackedRun(
        uri=stack.mlflow_address, experiment_id=facts["experiment_id"], run_id=facts["run_id"], name=facts["name"]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", stack.mlflow_address)
        patch.setenv("MLFLOW_TRACKING_USERNAME", "grpo")
        patch.setenv("MLFLOW_TRACKING_PASSWORD", stack.secret("mlflow_password"))
        lines = history_differences(tracked, run_dir.journal_file)
        found += [line for line in lines if not line.startswith("strange: sweep/")]  # what a sweep says of its runs
        assert count_points(run_dir.journal_file) > count
    status = stack.mlflow("GET", f"/runs/get?run_id={facts['run_id']}")["run"]["info"]["status"]
    return found + ([] if status == "FINISHED" else [f"MLflow: {status}"])
