"""Data sets that several runs log at the same moment, into one real store."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput

from tasks.tracking import log_inputs

pytestmark = pytest.mark.proof

RUNS, ROUNDS = 6, 12


def test_runs_that_log_the_same_new_data_set_at_once_all_have_it(tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.create_experiment("inputs", artifact_location=tmp_path.as_uri())
    together = Barrier(RUNS)

    def log(run_id: str, inputs: list[Any]) -> None:
        together.wait()
        log_inputs(client, run_id, inputs)

    for number in range(ROUNDS):
        runs = [client.create_run(experiment).info.run_id for _ in range(RUNS)]
        inputs = [DatasetInput(Dataset("train-prompts", f"digest{number}", "code", "{}"))]
        with ThreadPoolExecutor(RUNS) as pool:
            list(pool.map(log, runs, [inputs] * RUNS))
        for run_id in runs:
            assert [used.dataset.digest for used in client.get_run(run_id).inputs.dataset_inputs] == [f"digest{number}"]
