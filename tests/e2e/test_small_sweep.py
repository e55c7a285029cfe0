"""The shortest sweep through the command: two arms with one seed, from the file to the report and MLflow."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from grpo_core.config import apply_overrides
from grpo_core.run.warm import MODULE
from grpo_core.sweep.folder import SweepDir
from tests.e2e.conftest import Finished

STEPS = 2
OPTIONS = {"data.eval_fraction": 0.0, "tracking.log_policy": False, "training.steps": STEPS}


def test_two_arms_are_trained_reported_and_nested_in_mlflow(
    grpo: Callable[..., Finished], tiny_values: dict[str, Any], tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    sweep = {"base": "tiny.yaml", "axes": {"loss.beta": [0.01, 0.5]}, "seeds": [3], "objective": {"metric": "reward/mean"}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(apply_overrides(tiny_values, OPTIONS)))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    done = grpo("sweep", "sweep.yaml", "--sweep-dir", "runs/one", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 finished" in done.stdout
    left = [one.info["cwd"] for one in psutil.process_iter(["cmdline", "cwd"]) if MODULE in (one.info["cmdline"] or ())]
    assert str(tmp_path) not in left  # the process that was ready for the second run is that run's command
    sweep_dir = SweepDir(tmp_path / "runs" / "one")
    assert "<h1>" in (sweep_dir.report / "report.html").read_text()
    tracked = json.loads(sweep_dir.tracking_file.read_text())
    client = MlflowClient(tracking_uri=tracked["uri"])
    children = client.search_runs([tracked["experiment_id"]], f"tags.`mlflow.parentRunId` = '{tracked['run_id']}'")
    assert {(run.info.status, run.data.params["loss.beta"]) for run in children} == {("FINISHED", "0.01"), ("FINISHED", "0.5")}
    run_dir = sweep_dir.path / "runs" / "arm-000-seed-3"
    (of_run,) = [run.info.run_id for run in children if run.data.params["loss.beta"] == "0.01"]

    assert (run_dir / "index.html").exists()
    done = grpo("report", str(run_dir), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["report"], document["problems"]) == (f"{run_dir}/index.html", [])
    assert "index.html" in {file.path for file in client.list_artifacts(of_run)}
