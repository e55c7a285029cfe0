"""The whole flow on the tiny model: what it prints, what lies in the RUN_DIR, what MLflow holds."""

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.run.journal import read_journal
from tests.conftest import build_values
from tests.step_keys import required_step_keys

STEPS = 4


@pytest.fixture(scope="module")
def run_dir(finished_run: Any) -> Path:
    return finished_run[0]


@pytest.fixture(scope="module")
def mlflow_run(run_dir: Path) -> tuple[Any, Any]:
    """(client, run) read back from the store that the flow wrote."""
    from mlflow import MlflowClient

    tracked = json.loads((run_dir / "tracking.json").read_text())
    client = MlflowClient(tracking_uri=tracked["uri"])
    return client, client.get_run(tracked["run_id"])


def history(mlflow_run: tuple[Any, Any], key: str) -> list[tuple[int, float]]:
    client, run = mlflow_run
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key)]


def test_prints_progress_the_paired_result_and_how_to_open_the_uis(finished_run: Any, prefect_api: str) -> None:
    output = finished_run[1].stdout
    assert f"step {STEPS}/{STEPS}  reward " in output
    assert "reference synchronised (alpha 1)" in output
    assert "held-out greedy accuracy (10 prompts)" in output
    assert "paired difference on new prompts, this run alone, 95 % interval" in output
    assert "mlflow ui --backend-store-uri sqlite:///" in output
    assert f"Prefect   {prefect_api.removesuffix('/api')}" in output
    assert "Traceback" not in output + finished_run[1].stderr


def test_run_dir_holds_everything(run_dir: Path) -> None:
    expected = ["config.json", "provenance.json", "journal.jsonl", "tracking.json", "train.log", "index.html", "summary.json"]
    expected += ["data/train.jsonl", "data/eval.jsonl", "data/manifest.json", "eval/base.json", "eval/final.parquet"]
    expected += [f"completions/step_{step:06d}.parquet" for step in range(1, STEPS + 1)]
    expected += [f"checkpoints/step_{STEPS:06d}/{name}" for name in ("reference.safetensors", "policy/model.safetensors")]
    assert [name for name in expected if not (run_dir / name).is_file()] == []
    assert '"live":false' in (run_dir / "index.html").read_text()


def test_every_required_key_has_exactly_one_point_a_step(mlflow_run: tuple[Any, Any]) -> None:
    for key in required_step_keys(["exact_answer", "length"]):
        assert [step for step, _ in history(mlflow_run, key)] == list(range(1, STEPS + 1)), key


def test_mlflow_holds_what_the_journal_holds(run_dir: Path, mlflow_run: tuple[Any, Any]) -> None:
    expected = Counter(
        (key, record.step, value) for record in read_journal(run_dir / "journal.jsonl") for key, value in record.metrics.items()
    )
    keys = {key for key, _, _ in expected}
    found = Counter((key, step, value) for key in keys for step, value in history(mlflow_run, key))
    assert found == expected


def test_sync_events_are_a_metric_and_a_table(mlflow_run: tuple[Any, Any]) -> None:
    client, run = mlflow_run
    assert history(mlflow_run, "ref/synced") == [(1, 0.0), (2, 1.0), (3, 0.0), (4, 1.0)]
    path = client.download_artifacts(run.info.run_id, "tables/ref_syncs.json")
    table = json.loads(Path(path).read_text())
    steps = [row[table["columns"].index("step")] for row in table["data"]]
    assert steps == [2, 4]


def test_mlflow_run_is_finished_with_params_tags_inputs_and_artifacts(mlflow_run: tuple[Any, Any]) -> None:
    client, run = mlflow_run
    assert run.info.status == "FINISHED"
    assert run.data.params["loss.beta"] == "0.04"
    assert run.data.params["rewards.1.fn"] == "length"
    assert {"seed", "data_digest", "model_digest", "config_digest", "policy_digest"} <= run.data.tags.keys()
    assert sorted(data.dataset.name for data in run.inputs.dataset_inputs) == ["eval-prompts", "train-prompts"]
    artifacts = {file.path for folder in ("", "tables", "policy") for file in client.list_artifacts(run.info.run_id, folder)}
    assert {"config.json", "provenance.json", "journal.jsonl", "data", "completions", "eval"} <= artifacts
    assert {"index.html", "policy/model.safetensors"} <= artifacts
    assert "summary.json" not in artifacts  # written after all of MLflow: whoever is killed before is resumed
    tables = {f"tables/completions_{name}.json" for name in ("eval_final", "first_step", "middle_step", "last_step")}
    assert tables <= artifacts
    last = json.loads(Path(client.download_artifacts(run.info.run_id, "tables/completions_last_step.json")).read_text())
    assert last["columns"][:4] == ["prompt", "completion", "answer", "reward"]


def test_prefect_holds_the_tasks_the_progress_and_the_report(finished_run: Any, prefect_api: str) -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs()
        finished = [run for run in runs if run.parameters.get("run_dir") == "runs/one"]
        assert [run.state.type.value for run in finished] == ["COMPLETED"]
        names = sorted(task.name.rsplit("-", 1)[0] for task in client.read_task_runs() if task.flow_run_id == finished[0].id)
        of_this_run = {"flow_runs": {"id": {"any_": [str(finished[0].id)]}}}  # the server has the runs of other tests too
        response = client.request("POST", "/artifacts/filter", json=of_this_run)
    assert [
        name for name in ("monitor", "open-run", "prepare-data", "prepare-model", "report", "train") if name not in names
    ] == []
    artifacts = {artifact["key"]: artifact["data"] for artifact in response.json()}
    assert len(artifacts) == len(response.json())
    assert artifacts["training-progress"] == 100.0
    assert "held-out greedy accuracy" in artifacts["training-report"]


@pytest.mark.proof
def test_a_breached_kl_budget_stops_the_run_with_its_reason(grpo: Any, tiny_model_dir: Path, tmp_path: Path) -> None:
    """On a task of reasoning-gym, whose completions are judged in processes of their own."""
    from mlflow import MlflowClient

    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(build_values(tiny_model_dir)))
    rule = "monitor.rules=[{kind: kl_budget, metric: kl/init/drift, bound: 1.0e-9, action: stop}]"
    done = grpo(
        "train", "tiny.yaml", rule, "training.steps=2000", "evaluation.every_steps=null", "--run-dir", "runs/kl", cwd=tmp_path
    )
    assert done.returncode == 3
    reason = "kl/init/drift is "
    assert reason in done.stderr
    assert "above the budget of 1e-09 nats" in done.stderr
    run_dir = tmp_path / "runs" / "kl"
    records = read_journal(run_dir / "journal.jsonl")
    assert all("reward/reasoning_gym/mean" in record.metrics for record in records if record.kind == "step")
    end = records[-2]
    assert end.kind == "end"
    assert end.data["status"] == "stopped"
    assert 0 < end.step < 2000
    assert (run_dir / "checkpoints" / f"step_{end.step:06d}" / "manifest.json").exists()
    tracked = json.loads((run_dir / "tracking.json").read_text())
    tags = MlflowClient(tracking_uri=tracked["uri"]).get_run(tracked["run_id"]).data.tags
    assert reason in tags["alert.kl_budget.kl/init/drift"]


@pytest.mark.proof
def test_a_tag_set_in_mlflow_ends_the_training_after_its_step(grpo: Any, tiny_yaml: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    run_dir = tmp_path / "runs" / "tagged"

    def tag_once_it_trains() -> None:
        while not ((run_dir / "journal.jsonl").exists() and '"kind":"step"' in (run_dir / "journal.jsonl").read_text()):
            time.sleep(0.2)
        tracked = json.loads((run_dir / "tracking.json").read_text())
        MlflowClient(tracking_uri=tracked["uri"]).set_tag(tracked["run_id"], "grpo.stop", "seen enough")

    threading.Thread(target=tag_once_it_trains, daemon=True).start()
    steps = ("training.steps=100000", "evaluation.every_steps=null", "evaluation.samples=0")
    done = grpo("train", str(tiny_yaml), *steps, "--run-dir", "runs/tagged", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "asked for in MLflow (tag grpo.stop: seen enough)" in done.stderr
    end = next(record for record in read_journal(run_dir / "journal.jsonl") if record.kind == "end")
    assert end.data["status"] == "stopped"
    assert (run_dir / "eval" / "final.json").exists()


@pytest.mark.proof
def test_the_same_flow_runs_on_trl(grpo: Any, tiny_yaml: Path, run_dir: Path, tmp_path: Path) -> None:
    options = ("training.engine=trl", "evaluation.every_steps=null", "evaluation.samples=0")
    done = grpo("train", str(tiny_yaml), *options, "--run-dir", "runs/trl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    journals = [read_journal(path / "journal.jsonl") for path in (run_dir, tmp_path / "runs" / "trl")]
    native, trl = ([record.metrics for record in journal if record.kind == "step"] for journal in journals)
    assert [step.keys() for step in native] == [step.keys() for step in trl]
    assert [step["reward/mean"] for step in native] == pytest.approx([step["reward/mean"] for step in trl], rel=1e-4)
    assert [step["kl/ref/drift"] for step in native] == pytest.approx(
        [step["kl/ref/drift"] for step in trl], rel=1e-3, abs=1e-6
    )
