"""Data sets that several runs log at the same moment, and folders with leftovers, into a real store."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput

from tasks.tracking.store import log_folder, patiently

pytestmark = pytest.mark.proof

RUNS, ROUNDS = 6, 12


def test_runs_that_log_the_same_new_data_set_at_once_all_have_it(tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.create_experiment("inputs", artifact_location=(tmp_path / "mlartifacts").as_uri())
    together = Barrier(RUNS)

    def log(run_id: str, inputs: list[Any]) -> None:
        together.wait()
        patiently(client.log_inputs)(run_id, datasets=inputs)

    for number in range(ROUNDS):
        runs = [client.create_run(experiment).info.run_id for _ in range(RUNS)]
        inputs = [DatasetInput(Dataset("train-prompts", f"digest{number}", "code", "{}"))]
        with ThreadPoolExecutor(RUNS) as pool:
            list(pool.map(log, runs, [inputs] * RUNS))
        for run_id in runs:
            assert [used.dataset.digest for used in client.get_run(run_id).inputs.dataset_inputs] == [f"digest{number}"]


def test_what_a_killed_process_left_half_written_is_not_uploaded(tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    run_id = client.create_run(
        client.create_experiment("left", artifact_location=(tmp_path / "mlartifacts").as_uri())
    ).info.run_id
    for name in ("final.json", ".final.json.4711.partial", "inner/table.parquet", "inner/.table.parquet.4711.partial"):
        (tmp_path / "eval" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "eval" / name).write_text("{}")
    log_folder(client, run_id, tmp_path / "eval", "eval")
    assert [file.path for file in client.list_artifacts(run_id, "eval")] == ["eval/final.json", "eval/inner"]
    assert [file.path for file in client.list_artifacts(run_id, "eval/inner")] == ["eval/inner/table.parquet"]
