"""What a run is said to need of a disk, against what a real one writes; and what it says and refuses."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_core.config import RunConfig, load_config
from grpo_core.errors import JournalError
from grpo_core.machine.disk import folder_bytes, stored_tensors
from grpo_core.run.sizes import TEXT_BYTES, KeptWeights, checkpoint_bytes, disk_need, kept_weights
from grpo_core.sweep.plan import load_sweep
from grpo_core.training.__main__ import main
from tasks.run.inputs import check_machine, check_sweep_disk
from tasks.tracking.store import TrackedRun

TEXTS = 25_000_000
"""Allowed for report, journal and tables, which do not grow with the model."""
TRACKED = TrackedRun(uri="http://127.0.0.1:9", experiment_id="0", run_id="0", name="x")
RANK = {"model.lora": {"rank": 64}}
AVERAGED = {"reference.mixup_alpha": 0.5, "reference.sync_steps": 1}


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


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, ["weight"]),
        ({"evaluation.every_steps": 2}, ["weight"]),
        (RANK, ["scale", "weight"]),
        ({"model.lora": {"rank": 16}, **AVERAGED}, ["scale", "weight"]),
        ({"model.lora": {"rank": 48}, **AVERAGED}, ["delta", "scale", "weight"]),  # some averages are whole matrices
    ],
    ids=str,
)
def test_a_real_run_writes_what_it_was_said_to_need(
    tiny_run: Any, larger_model: Path, changes: dict[str, Any], parts: list[str]
) -> None:
    run_dir = tiny_run({"model.source": str(larger_model), "training.checkpoint_every": 1, **changes})
    config = run_dir.read_config()
    weights = kept_weights(config, larger_model)
    assert weights is not None
    need, before = disk_need(config, weights), folder_bytes(run_dir.path)
    assert main([str(run_dir.path)]) == 0
    assert need - TEXTS - 2 * checkpoint_bytes(config, weights) <= folder_bytes(run_dir.path) - before <= need
    newest = max(run_dir.checkpoints.glob("step_*"))
    sizes = {name: math.prod(tensor.shape) for name, tensor in stored_tensors(newest / "reference.safetensors").items()}
    assert sorted({name.rpartition(".")[2] for name in sizes}) == parts
    assert sum(size for name, size in sizes.items() if not name.endswith(".scale")) == weights.reference
    finished = [folder_bytes(path) for path in run_dir.checkpoints.iterdir()]
    resumed = disk_need(config, weights, present=finished)
    assert resumed <= need - sum(finished) + TEXTS


def make(keys: dict[str, Any]) -> RunConfig:
    return load_config("quickstart", {"training.steps": 100, "training.checkpoint_every": 20, **keys})


@pytest.mark.parametrize(
    ("keys", "more", "models"),
    [
        ({"training.keep_checkpoints": 2}, {}, 3 * 3 + 1),  # policy, two moments; once, the initial policy
        ({"training.keep_checkpoints": 10}, {}, 5 * 3 + 1),  # five are written
        ({"training.checkpoint_every": None}, {}, 3 + 1),
        ({"training.keep_checkpoints": 2, "reference.sync_steps": 10}, {}, 3 * 4 + 1),
        ({"training.keep_checkpoints": 2, "reference.sync_steps": 101}, {}, 3 * 3 + 1),  # it never comes
        ({"training.keep_checkpoints": 2, "evaluation.every_steps": 10}, {}, 4 * 3 + 1),  # the best one, too
        ({"training.keep_checkpoints": 2}, {"tracked_here": True}, 3 * 3 + 2),
        ({"training.keep_checkpoints": 2}, {"present": [12 * 10**12] * 2}, 3 + 1),
    ],
    ids=str,
)
def test_the_need_is_a_number_of_models_in_fp32(keys: dict[str, Any], more: dict[str, Any], models: int) -> None:
    """Of a model so large that nothing else counts."""
    config = make({"evaluation.every_steps": None, "reference.sync_steps": None, **keys})
    need = disk_need(config, KeptWeights(policy=10**12, reference=10**12), **more)
    assert need - TEXT_BYTES == models * 4 * 10**12


def test_a_run_and_a_sweep_say_what_they_need_and_are_refused_what_will_not_fit(
    tiny_run: Any, larger_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = tiny_run({"model.source": str(larger_model), "training.checkpoint_every": 1})
    check_machine(run_dir.path, TRACKED, larger_model)
    said = capsys.readouterr().out
    assert said.startswith("disk: needs up to ")
    assert f" MB in {run_dir.path}; " in said
    assert said.endswith(" free\n")
    plan = load_sweep("beta_group_sync_tiny", {"overrides.model.source": str(larger_model)})
    for folder in (None, Path("runs/mine")):
        check_sweep_disk(folder, plan)
        assert f" in {folder or 'runs'}; " in capsys.readouterr().out
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=4_096_000, total=8_192_000))
    with pytest.raises(JournalError, match=r"too little disk by .* MB; .*training\.keep_checkpoints=1.* another disk"):
        check_machine(run_dir.path, TRACKED, larger_model)
    with pytest.raises(JournalError, match=rf"the sweep \({plan.num_runs} runs\) .*too little disk by"):
        check_sweep_disk(None, plan)
