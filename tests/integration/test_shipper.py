"""The shipper against a real MLflow store: every figure once, whatever is replayed, repeated or lost on the way."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from grpo_core.run.journal import Journal, Record, read_records
from tasks.tracking import Shipper, TrackedRun
from tasks.tracking.databases import ensure_store

KEY = "kl/ref/drift"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(address, experiment) of an MLflow store."""
    folder = tmp_path_factory.mktemp("store")
    ensure_store(folder / "mlflow.db")  # a copy of an empty one: MLflow's migrations take seconds
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    return uri, client.create_experiment("shipping", artifact_location=(folder / "mlartifacts").as_uri())


@pytest.fixture
def tracked(experiment: tuple[str, str]) -> TrackedRun:
    """A run of its own."""
    uri, experiment_id = experiment
    run_id = MlflowClient(tracking_uri=uri).create_run(experiment_id).info.run_id
    return TrackedRun(uri=uri, experiment_id=experiment_id, run_id=run_id, name="run")


def history(tracked: TrackedRun, key: str = KEY) -> list[tuple[int, float, int]]:
    found = MlflowClient(tracking_uri=tracked.uri).get_metric_history(tracked.run_id, key)
    return [(metric.step, metric.value, metric.timestamp) for metric in found]


def points(records: list[Record]) -> list[tuple[int, float, int]]:
    return [(record.step, record.metrics[KEY], record.timestamp_ms) for record in records if record.kind == "step"]


def step(journal: Journal, number: int, value: float) -> None:
    journal.append("step", number, {"metrics": {"progress/step": float(number), KEY: value}})


@pytest.fixture
def replayed(tmp_path: Path) -> list[Record]:
    """Steps 1, 2, 3, a resume at 1, and steps 2, 3, 4 again."""
    journal = Journal(tmp_path / "journal.jsonl")
    for number in (1, 2, 3):
        step(journal, number, number / 10)
    journal.append("resume", 1, {})
    for number in (2, 3, 4):
        step(journal, number, number / 10)
    journal.close()
    return read_records(tmp_path / "journal.jsonl")


def ship(shipper: Shipper, records: list[Record]) -> None:
    for record in records:
        shipper.add(record)
    assert shipper.ship_all(10) == 0


def test_a_replayed_step_is_one_point_with_its_first_time(tracked: TrackedRun, replayed: list[Record]) -> None:
    expected = points([*replayed[:3], replayed[-1]])
    ship(Shipper(tracked), replayed)
    assert history(tracked) == expected
    ship(Shipper(tracked), replayed)  # another one, that knows nothing of the first
    assert history(tracked) == expected


@pytest.mark.parametrize("read_before", range(1, 7))
def test_it_does_not_matter_where_one_shipper_ends_and_the_next_begins(
    tracked: TrackedRun, replayed: list[Record], read_before: int
) -> None:
    ship(Shipper(tracked), replayed[:read_before])
    ship(Shipper(tracked), replayed)
    assert history(tracked) == points([*replayed[:3], replayed[-1]])


def test_a_batch_whose_answer_was_lost_is_not_sent_again(tracked: TrackedRun, replayed: list[Record], monkeypatch: Any) -> None:
    send = MlflowClient.log_batch
    lost = threading.Event()

    def lose_the_first_answer(self: Any, *arguments: Any, **options: Any) -> Any:
        answer = send(self, *arguments, **options)
        if not lost.is_set():
            lost.set()
            raise ConnectionError("the server was killed after it had written the batch")
        return answer

    monkeypatch.setattr(MlflowClient, "log_batch", lose_the_first_answer)
    ship(Shipper(tracked), replayed)
    assert lost.is_set()
    assert history(tracked) == points([*replayed[:3], replayed[-1]])


def sync(journal: Journal, number: int, alpha: float) -> None:
    figures = {"sync_count": number, "kl_before": 0.1 * number, "kl_after": 0.0, "param_distance": 1.0}
    journal.append("ref_sync", number, {"step": number, "alpha": alpha, **figures})


def synced_table(tracked: TrackedRun) -> list[list[float]]:
    text = MlflowClient(tracking_uri=tracked.uri).download_artifacts(tracked.run_id, "tables/ref_syncs.json")
    table = json.loads(Path(text).read_text())
    return [[row[table["columns"].index(column)] for column in ("step", "alpha")] for row in table["data"]]


def test_the_table_of_syncs_follows_each_sync_and_forgets_those_that_a_resume_repeats(
    tracked: TrackedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.tracking.shipper.PAUSE_SECONDS", 0.0)
    journal = Journal(tmp_path / "journal.jsonl")
    shipper, seen = Shipper(tracked), []
    for number, alpha in ((2, 1.0), (4, 1.0)):
        step(journal, number, 0.1)
        sync(journal, number, alpha)
    journal.append("resume", 3, {})
    step(journal, 4, 0.1)
    sync(journal, 4, 0.5)
    journal.close()
    for record in read_records(tmp_path / "journal.jsonl"):
        shipper.add(record)
        shipper.ship_all(10)
        if record.kind == "ref_sync":
            seen.append(synced_table(tracked))
    assert seen == [[[2, 1.0]], [[2, 1.0], [4, 1.0]], [[2, 1.0], [4, 0.5]]]


def test_a_run_that_was_deleted_is_named_and_not_waited_for(tracked: TrackedRun, replayed: list[Record]) -> None:
    shipper = Shipper(tracked)
    ship(shipper, replayed[:1])
    MlflowClient(tracking_uri=tracked.uri).delete_run(tracked.run_id)
    for record in replayed:
        shipper.add(record)
    assert shipper.ship_all(seconds=1e9) > 0
    assert shipper.is_deleted
    assert shipper.last_error == "the MLflow run was deleted"
