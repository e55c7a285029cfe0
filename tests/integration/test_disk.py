"""What a run is said to need, against what a real one writes; and what it says and refuses."""

import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_core.errors import JournalError
from grpo_core.machine.disk import folder_bytes
from grpo_core.machine.tensor_file import stored_tensors
from grpo_core.run.disk_need import disk_need, kept_weights
from grpo_core.sweep.plan import load_sweep
from grpo_core.training.__main__ import main
from tasks.run.disk import check_disk, check_sweep_disk
from tasks.tracking.store import TrackedRun

TEXTS = 25_000_000
"""Allowed for report, journal and tables, which do not grow with the model."""


@pytest.fixture(scope="module")
def larger_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough that weights are what counts: 3.2 million parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.conftest import CHARACTERS, build_tokenizer

    folder = tmp_path_factory.mktemp("model") / "larger"
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(CHARACTERS) + 5, tie_word_embeddings=True, bos_token_id=None, eos_token_id=1, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


ADAPTER = {"model.lora": {"rank": 64}}


@pytest.mark.parametrize("changes", [{}, {"reference.sync_steps": None}, {"evaluation.every_steps": 2}, ADAPTER], ids=str)
def test_a_real_run_writes_what_it_was_said_to_need(tiny_run: Any, larger_model: Path, changes: dict[str, Any]) -> None:
    run_dir = tiny_run({"model.source": str(larger_model), "training.checkpoint_every": 1, **changes})
    weights = kept_weights(run_dir.read_config(), larger_model)
    assert weights is not None
    need = disk_need(run_dir.read_config(), weights)
    before = folder_bytes(run_dir.path)
    assert main([str(run_dir.path)]) == 0
    written = folder_bytes(run_dir.path) - before
    one = need.most - need.lasting
    best_is_newest = one if "evaluation.every_steps" in changes else 0
    assert need.lasting - TEXTS - best_is_newest <= written <= need.lasting
    finished = [folder_bytes(path) for path in run_dir.checkpoints.iterdir()]
    assert disk_need(run_dir.read_config(), weights, from_step=4, present=finished).most < TEXTS


@pytest.mark.parametrize("rank", [16, 48], ids=["of low rank", "with some whole matrices"])
def test_the_last_average_of_adapters_is_as_large_as_was_said(tiny_run: Any, larger_model: Path, rank: int) -> None:
    """Each sync adds the adapter's rank, so that earlier checkpoints are smaller."""
    changes = {"model.lora": {"rank": rank}, "reference.mixup_alpha": 0.5, "reference.sync_steps": 1}
    run_dir = tiny_run({"model.source": str(larger_model), "training.checkpoint_every": 1, **changes})
    weights = kept_weights(run_dir.read_config(), larger_model)
    assert weights is not None
    need = disk_need(run_dir.read_config(), weights)
    assert main([str(run_dir.path)]) == 0
    newest = max(run_dir.checkpoints.glob("step_*"))
    stored = stored_tensors(newest / "reference.safetensors")
    sizes = {name: math.prod(tensor.shape) for name, tensor in stored.items()}
    assert sum(size for name, size in sizes.items() if not name.endswith(".scale")) == weights.reference
    assert {name.rpartition(".")[2] for name in sizes} == ({"weight", "scale"} if rank == 16 else {"weight", "scale", "delta"})
    assert folder_bytes(newest) <= need.most - need.lasting + TEXTS


def tracked(tmp_path: Path) -> TrackedRun:
    return TrackedRun(uri="http://127.0.0.1:9", experiment_id="0", run_id="0", name="x")


def test_a_run_says_what_it_needs_and_has(tiny_run: Any, larger_model: Path, tmp_path: Path, capsys: Any) -> None:
    run_dir = tiny_run({"model.source": str(larger_model)})
    check_disk(run_dir.path, tracked(tmp_path), larger_model)
    said = capsys.readouterr().out
    assert said.startswith("disk: needs up to ")
    assert f" MB in {run_dir.path}" in said
    assert said.endswith(" free\n")


@pytest.mark.parametrize("sweep_path", [None, Path("runs/mine")], ids=str)
def test_a_sweep_names_the_folders_that_it_writes_to(
    larger_model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any, sweep_path: Path | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    plan = load_sweep("beta_group_sync_tiny", {"overrides.model.source": str(larger_model)})
    check_sweep_disk(sweep_path, plan)
    said = capsys.readouterr().out
    assert f" in {sweep_path or 'runs'} " in said


def test_a_run_that_will_not_fit_is_refused_before_it_starts(
    tiny_run: Any, larger_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_bavail=1000, f_frsize=4096, f_blocks=10**6)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    run_dir = tiny_run({"model.source": str(larger_model), "training.checkpoint_every": 1})
    with pytest.raises(
        JournalError, match=r"too little disk by .* MB; free that much, or training\.keep_checkpoints=1"
    ) as caught:
        check_disk(run_dir.path, tracked(tmp_path), larger_model)
    assert "another disk" in str(caught.value)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=0))
    check_disk(run_dir.path, tracked(tmp_path), larger_model)  # a file system that does not tell refuses nothing
