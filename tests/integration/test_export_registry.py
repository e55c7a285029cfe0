"""An export in MLflow's registry: loaded from there by another process, once for each export, beside the run that it is of."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core import train
from grpo_core.config import apply_overrides, validate_config
from grpo_core.errors import ConfigError, TrackingError
from grpo_core.export.choice import ExportWish
from grpo_core.run.folder import RunDir
from tasks.tracking import open_tracking, track_results
from tasks.tracking.exporting import ExportSummary, export_run
from tasks.tracking.store import TrackedRun, make_client

pytestmark = pytest.mark.proof

GREEDY = """
import json, sys
import mlflow
import torch
from transformers import AutoModelForCausalLM

uri, model, folder = sys.argv[1:]
mlflow.set_tracking_uri(uri)
pipeline = mlflow.transformers.load_model(model)
files = mlflow.artifacts.download_artifacts(model)
models = [pipeline.model, AutoModelForCausalLM.from_pretrained(files + "/model"), AutoModelForCausalLM.from_pretrained(folder)]
ids = pipeline.tokenizer("2 + 3 =", return_tensors="pt")["input_ids"]
made = [one.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False) for one in models]
print(json.dumps([tokens[0].tolist() for tokens in made]))
"""


@pytest.fixture(scope="module")
def tracked_run(tiny_values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, TrackedRun]:
    """A run that has ended, and its run in a SQLite store."""
    folder = tmp_path_factory.mktemp("registry")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    config = validate_config(apply_overrides(tiny_values, {"tracking.uri": uri, "training.steps": 2}))
    train(config, run_dir=folder / "one", progress=False)
    tracked = open_tracking.fn(folder / "one")
    assert track_results.fn(folder / "one", tracked, "FINISHED") == ()
    return RunDir(folder / "one"), tracked


def registered(run: str, folder: Path, name: str, wish: ExportWish = ExportWish()) -> ExportSummary:  # noqa: B008  (frozen)
    return export_run.fn(run, wish, folder, name)


def test_another_process_loads_a_version_and_gets_the_same_tokens(
    tracked_run: tuple[RunDir, TrackedRun], tmp_path: Path
) -> None:
    run_dir, tracked = tracked_run
    summary = registered(str(run_dir.path), tmp_path / "out", "sums")
    assert summary.registered is not None
    assert dict(summary.places)["load"] == "mlflow.transformers.load_model('models:/sums/1')"
    arguments = [sys.executable, "-c", GREEDY, tracked.uri, "models:/sums/1", str(tmp_path / "out")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    by_mlflow, downloaded, exported = json.loads(done.stdout.splitlines()[-1])
    assert by_mlflow == downloaded == exported


def test_a_version_has_figures_and_its_run_and_no_folder_of_this_machine(
    tracked_run: tuple[RunDir, TrackedRun], tmp_path: Path
) -> None:
    run_dir, tracked = tracked_run
    registered(str(run_dir.path), tmp_path / "out", "figures")
    client = make_client(tracked.uri)
    version = client.get_model_version("figures", "1")
    final = json.loads((run_dir.eval / "final.json").read_text())["estimates"]["eval/heldout/greedy_accuracy"]
    shown = f"{final['value']:.3f} [{final['low']:.3f}, {final['high']:.3f}]"
    assert version.run_id == tracked.run_id
    assert version.tags["eval/heldout/greedy_accuracy"] == shown
    run = client.get_run(tracked.run_id)
    assert run.info.status == "FINISHED"
    assert [output.step for output in run.outputs.model_outputs if output.step == 2]
    (model,) = client.search_logged_models([tracked.experiment_id], filter_string="name = 'step_000002-merged'", max_results=1)
    assert model.source_run_id == tracked.run_id
    source = str(Path(run_dir.read_config().model.source).parent)
    texts = [*version.tags.values(), version.description, *model.tags.values()]
    assert all(source not in text for text in texts)


def test_the_same_export_is_registered_once_and_no_second_run_is_made(
    tracked_run: tuple[RunDir, TrackedRun], tmp_path: Path
) -> None:
    run_dir, tracked = tracked_run
    client = make_client(tracked.uri)
    first = registered(str(run_dir.path), tmp_path / "out", "once")
    again = registered(str(run_dir.path), tmp_path / "out", "once")
    assert first.registered is not None
    assert again.registered is not None
    assert (first.registered.version, again.registered.version, again.registered.was_there) == ("1", "1", True)
    rounded = registered(str(run_dir.path), tmp_path / "rounded", "once", ExportWish(dtype="bfloat16"))
    assert rounded.registered is not None
    assert rounded.registered.version == "2"
    assert len(client.search_runs([tracked.experiment_id])) == 1


def test_what_mlflow_cannot_take_is_refused_before_anything_is_written(
    tracked_run: tuple[RunDir, TrackedRun], tmp_path: Path
) -> None:
    run_dir, _ = tracked_run
    with pytest.raises(ConfigError, match=r"--register 'a/b': the name of a registered model"):
        registered(str(run_dir.path), tmp_path / "out", "a/b")
    facts = json.loads(run_dir.tracking_file.read_text())
    try:
        run_dir.tracking_file.write_text(json.dumps({**facts, "run_id": "0" * 32}))
        with pytest.raises(TrackingError, match=r"cannot be used .*; nothing was exported\. Start its server"):
            registered(str(run_dir.path), tmp_path / "out", "sums")
        run_dir.tracking_file.unlink()
        with pytest.raises(TrackingError, match=r"has no readable tracking\.json"):
            registered(str(run_dir.path), tmp_path / "out", "sums")
    finally:
        run_dir.tracking_file.write_text(json.dumps(facts))
    assert list(tmp_path.iterdir()) == []
