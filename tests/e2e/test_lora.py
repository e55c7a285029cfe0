"""An adapter through the commands: train, resume, evaluate, reproduce, begin with it, sweep over its rank."""

import json
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from safetensors.torch import load_file

from grpo_core.policy.sources.find import weights_digest
from grpo_core.run.curves import sync_table
from grpo_core.run.journal import read_journal, read_records

pytestmark = pytest.mark.proof
LORA = ("model.lora.rank=4", "optimizer.lr=0.01", "reference.mixup_alpha=0.5", "training.checkpoint_every=2")


@pytest.fixture(scope="module")
def trained(grpo: Any, tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN_DIR of a finished run with an adapter: 4 steps, 2 syncs of a moving average."""
    folder = tmp_path_factory.mktemp("lora")
    done = grpo("train", str(tiny_yaml), *LORA, "--run-dir", "runs/one", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "one"


def test_figures_and_files_of_a_run_are_those_of_an_adapter(trained: Path) -> None:
    records = read_journal(trained / "journal.jsonl")
    syncs = [record for record in records if record.kind == "ref_sync"]
    assert list(sync_table(records)["compression_error"]) == [0.0, 0.0]
    assert [(sync.data["compression_error"], sync.data["compression_bound"]) for sync in syncs] == [(0.0, 0.0)] * 2
    (step,) = (record for record in records if record.kind == "step" and record.step == 4)
    assert step.metrics["ref/compression_error"] == 0.0
    checkpoint = trained / "checkpoints" / "step_000004"
    weights = load_file(checkpoint / "policy" / "adapter_model.safetensors")
    assert {tuple(tensor.shape) for name, tensor in weights.items() if "q_proj.lora_A" in name} == {(4, 32)}
    assert not list(checkpoint.rglob("model.safetensors"))


def test_a_checkpoint_is_evaluated_as_it_was_in_its_run(grpo: Any, trained: Path) -> None:
    own = json.loads((trained / "eval" / "final.json").read_text())["estimates"]
    done = grpo("evaluate", str(trained), "--run-dir", "runs/evaluated", cwd=trained.parents[1])
    assert done.returncode == 0, done.stderr
    folder = trained.parents[1] / "runs" / "evaluated"
    (record,) = (record for record in read_records(folder / "journal.jsonl") if record.kind == "eval")
    for key, figure in record.metrics.items():
        if key in own:
            assert figure == own[key]["value"], key
    assert record.metrics.keys() & own.keys()


def test_a_reproduction_is_identical(grpo: Any, trained: Path) -> None:
    run_id = json.loads((trained / "tracking.json").read_text())["run_id"]
    done = grpo("reproduce", run_id, "--run-dir", "runs/again", cwd=trained.parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical: " in done.stdout


def test_another_run_begins_with_the_adapter(grpo: Any, trained: Path, tiny_yaml: Path) -> None:
    folder = trained.parents[1]
    adapter = trained / "checkpoints" / "step_000004" / "policy"
    done = grpo(
        *("train", str(tiny_yaml), *LORA, f"model.lora.init_from={adapter}", "training.steps=1", "--run-dir", "runs/next"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    base = json.loads((folder / "runs" / "next" / "eval" / "base.json").read_text())["estimates"]
    final = json.loads((trained / "eval" / "final.json").read_text())["estimates"]
    assert base == final
    tracking = json.loads((folder / "runs" / "next" / "tracking.json").read_text())
    tags = MlflowClient(tracking_uri=tracking["uri"]).get_run(tracking["run_id"]).data.tags
    first = json.loads((trained / "provenance.json").read_text())
    assert (tags["model_digest"], tags["adapter_digest"]) == (first["model_digest"], weights_digest(adapter))
    assert "adapter_digest" not in first


def test_another_base_under_a_run_is_refused_wherever_its_adapter_is_used(
    grpo: Any, trained: Path, tiny_model_dir: Path
) -> None:
    folder, weights = trained.parents[1], tiny_model_dir / "model.safetensors"
    before, content = weights_digest(tiny_model_dir), weights.read_bytes()
    commands = [("evaluate", str(trained), "--run-dir", "runs/no"), ("train", "--resume", str(trained))]
    try:
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        for command in commands:
            done = grpo(*command, cwd=folder)
            assert done.returncode != 0, command
            text = " ".join((done.stderr + done.stdout).split())
            assert f"model.source {tiny_model_dir}: has weights (SHA-256 {weights_digest(tiny_model_dir)[:12]})" in text
            assert f"({before[:12]})" in text
            assert not (folder / "runs" / "no").exists()
    finally:
        weights.write_bytes(content)
