"""Completions with images where people look for them beside the pages: in MLflow's tables, and in the terminal."""

import io
import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from mlflow import MlflowClient
from PIL import Image

from grpo_core.data.prepare import freeze
from grpo_core.data.splitting import PromptSplit
from grpo_core.machine.disk import PARTIAL
from grpo_core.run.folder import RunDir
from grpo_core.run.samples import read_groups
from grpo_core.types import Prompt
from tasks.tracking import track_inputs
from tasks.tracking.databases import ensure_store
from tasks.tracking.fetch import fetch_records
from tasks.tracking.store import TrackedRun
from tasks.tracking.tables import MOST_DRAWN, MOST_FILES, NONE, log_completions, log_evaluation
from tests.support.commands import grpo
from tests.support.pictured import (
    GOLD,
    REWARDS,
    TEXTS,
    keep_image,
    noise_image,
    shape_image,
    write_pictured,
    write_pictured_table,
)

Run = tuple[MlflowClient, str]
MOST_BYTES = 20_000
"""Of a small picture."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Address of an MLflow store, and an experiment in it."""
    folder = tmp_path_factory.mktemp("store")
    ensure_store(folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    experiment = MlflowClient(tracking_uri=uri).create_experiment("shown", artifact_location=(folder / "mlartifacts").as_uri())
    return uri, experiment


@pytest.fixture
def run(store: tuple[str, str]) -> Run:
    """A new run in the store."""
    client = MlflowClient(tracking_uri=store[0])
    return client, client.create_run(store[1]).info.run_id


def logged(run: Run, name: str) -> dict[str, Any]:
    """Return a table as MLflow's page reads it."""
    client, run_id = run
    return json.loads(Path(client.download_artifacts(run_id, f"tables/{name}.json")).read_text())


def images_of(run: Run) -> dict[str, Path]:
    """Return the image files of a run, by the names that cells give them."""
    client, run_id = run
    folder = Path(client.download_artifacts(run_id, "tables/images"))
    return {f"tables/images/{file.name}": file for file in folder.iterdir()}


def test_each_row_has_a_small_image_and_each_image_one_file_for_all_its_completions(run: Run, tmp_path: Path) -> None:
    run_dir = write_pictured(tmp_path / "one", prompts=1)
    big, small = (keep_image(run_dir, one) for one in (noise_image(1200), shape_image(3)))
    write_pictured_table(run_dir, 12, [[big], [small], [], [small, big], ["f" * 64]])
    for _ in range(2):  # `grpo track` logs it again
        log_completions(*run, "completions_last_step", run_dir, 12)
    table, files = logged(run, "completions_last_step"), images_of(run)
    assert table["columns"][:4] == ["image", "prompt", "completion", "answer"]
    assert table["columns"][-1] == "image_2"
    cells = [[row[0], row[-1]] for row in table["data"]]
    assert len(cells) == 5 * 4
    assert all(
        one["type"] == "image" and one["filepath"] == one["compressed_filepath"] in files for row in cells for one in row
    )
    assert [row[0] for row in cells] == [row for row in cells[::4] for row in [row[0]] * 4]  # of a prompt, not of a completion
    names = [[Path(one["filepath"]).name for one in row] for row in cells[::4]]
    assert names[2:] == [[NONE, NONE], [f"{small}.webp", f"{big}.webp"], [NONE, NONE]]
    assert names[0] == [f"completions_last_step_0_{big}.webp", NONE]  # with the boxes of this prompt
    assert len(files) == 5
    for file in files.values():
        assert file.stat().st_size < MOST_BYTES
        assert max(Image.open(io.BytesIO(file.read_bytes())).size) <= 256
    rewards = [row[table["columns"].index("reward")] for row in table["data"]]
    assert rewards == list(REWARDS) * 5


def test_a_step_of_many_prompts_has_a_bounded_number_of_images(run: Run, tmp_path: Path) -> None:
    run_dir = write_pictured(tmp_path / "one", prompts=MOST_FILES + 6)
    log_completions(*run, "many", run_dir, 12)
    names = [Path(row[0]["filepath"]).name for row in logged(run, "many")["data"][::4]]
    assert len(set(names) - {NONE}) == MOST_FILES == len(images_of(run)) - 1
    assert [name.startswith("many_") for name in names[: MOST_DRAWN + 1]] == [True] * MOST_DRAWN + [False]
    assert names[-6:] == [NONE] * 6


def test_an_evaluation_has_the_image_of_each_prompt_with_all_boxes_that_were_predicted_on_it(run: Run, tmp_path: Path) -> None:
    run_dir = write_pictured(tmp_path / "one", prompts=1)
    digests = [keep_image(run_dir, shape_image(number)) for number in (1, 2)]
    images = ((digests[0],), (), (digests[1],))
    prompts = tuple(
        Prompt(id=number, content="", text=f"{number}", token_ids=(1,), columns={"answer": str(list(GOLD))}, images=one)
        for number, one in enumerate(images)
    )
    freeze(PromptSplit(train=prompts, eval=prompts, num_too_long=0, num_duplicates=0), "file:made.jsonl", run_dir.data)
    texts = ["[0, 0, 8, 8]", "[0, 0, 8, 8]", "none", "[48, 50, 60, 62]", "[0, 0, 8, 8]", "none"]  # greedy ones, then samples
    table = pandas.DataFrame({"prompt_id": [0, 1, 2, 0, 1, 2], "completion": texts})
    log_evaluation(*run, "completions_eval_final", run_dir, table)
    found, files = logged(run, "completions_eval_final"), images_of(run)
    assert found["columns"] == ["image", "prompt_id", "completion"]
    names = [Path(row[0]["filepath"]).name for row in found["data"]]
    assert names == [f"completions_eval_final_0_{digests[0]}.webp", NONE, f"completions_eval_final_2_{digests[1]}.webp"] * 2
    first, last = (Image.open(files[f"tables/images/{names[row]}"]).convert("RGB") for row in (0, 2))
    assert first.size == (256, 256)  # four times as large
    blue, yellow = (first.getpixel((32, 16)), first.getpixel((193, 220))), first.getpixel((164, 140))
    assert max(abs(one - other) for found in blue for one, other in zip(found, (10, 95, 208), strict=True)) < 60
    assert max(abs(one - other) for one, other in zip(yellow, (255, 208, 0), strict=True)) < 60
    assert last.getpixel((32, 16))[0] > 200  # nothing was predicted there


def test_a_table_of_texts_has_no_column_of_images(run: Run, tmp_path: Path) -> None:
    run_dir = write_pictured(tmp_path / "one", prompts=1)
    pandas.read_parquet(run_dir.completions_file(12)).drop(columns="images").to_parquet(run_dir.completions_file(12))
    log_completions(*run, "texts", run_dir, 12)
    assert logged(run, "texts")["columns"][:4] == ["prompt", "completion", "answer", "reward"]
    assert {file.path for file in run[0].list_artifacts(run[1], "tables")} == {"tables/texts.json"}


def test_images_of_a_data_set_stay_in_the_runs_folder_where_a_fetched_run_finds_them(
    run: Run, store: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, run_id = run
    run_dir = write_pictured(tmp_path / "one")
    run_dir.provenance_file.write_text('{"data_digest": "0123456789"}')
    (run_dir.data / f"train.jsonl{PARTIAL}").touch()
    tracked = TrackedRun(uri=store[0], experiment_id=store[1], run_id=run_id, name="one")
    track_inputs.fn(run_dir.path, tracked)
    files = {file.path for file in client.list_artifacts(run_id, "data")}
    assert files == {f"data/{name}" for name in ("eval.jsonl", "manifest.json", "train.jsonl")}
    client.log_artifact(run_id, str(run_dir.journal_file))
    client.set_tag(run_id, "run_dir", str(run_dir.path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    fetch_records(run_id, tmp_path / "fetched")
    digests = {digest for group in read_groups(run_dir, 12) for digest in group.images}
    assert {file.name for file in (RunDir(tmp_path / "fetched").data / "images").iterdir()} == digests


def test_the_terminal_names_the_file_of_an_image(tmp_path: Path) -> None:
    run_dir = write_pictured(tmp_path / "one", prompts=1)
    ((digest,),) = (group.images for group in read_groups(run_dir, 12))
    done = grpo("samples", "one", cwd=tmp_path)
    assert f"image one/data/images/{digest}\n" in done.stdout
    assert (tmp_path / "one" / "data" / "images" / digest).is_file()
    assert [text for text in TEXTS if text in done.stdout] == list(TEXTS)
    (tmp_path / "one" / "data" / "images" / digest).unlink()
    assert f"image one/data/images/{digest} (missing)\n" in grpo("samples", "one", cwd=tmp_path).stdout
