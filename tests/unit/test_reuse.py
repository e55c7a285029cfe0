"""Evaluations that are kept: what they depend on, and that a run that uses one has what it would have made itself."""

import contextlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from grpo_core.evaluation.__main__ import main
from grpo_core.evaluation.held_out import evaluate_if_needed, evaluation_identity, is_missing
from grpo_core.evaluation.runner import evaluate_initial, open_evaluator
from grpo_core.policy.sources.find import weights_digest
from grpo_core.run.journal import Journal, read_journal
from grpo_core.run.provenance import find_model

Identify = Callable[..., str | None]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as an evaluation in this process sets it
    return tmp_path / "cache"


@pytest.fixture
def identify(tiny_run: Any, tiny_model_dir: Path) -> Identify:
    """Return a function that gives the identity of a base evaluation under overrides."""

    def identity(overrides: dict[str, Any] | None = None, folder: Path = tiny_model_dir) -> str | None:
        run_dir = tiny_run(
            {"model.source": str(folder), **(overrides or {})}, name=f"run-{abs(hash(str((overrides, folder))))}"
        )
        return evaluation_identity(run_dir, "heldout", 0, weights_digest)

    return identity


def test_what_an_arm_of_a_sweep_changes_does_not_change_it(identify: Identify) -> None:
    arm = {"loss.beta": 0.7, "rollout.group_size": 8, "rollout.num_prompts_per_step": 2, "reference.sync_steps": 3}
    free = {"training.steps": 9, "optimizer.lr": 0.1, "rewards.0.weight": 2.0, "tracking.experiment": "other"}
    first = identify()
    assert first is not None
    assert identify(arm) == identify(free) == first


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.seed", 1),
        ("training.threads", 2),
        ("training.rollout_rows", 16),
        ("training.deterministic", False),
        ("evaluation.num_prompts", 9),
        ("evaluation.samples", 3),
        ("evaluation.k", [1]),
        ("evaluation.pass_score", 0.5),
        ("evaluation.verifier", "length"),
        ("rollout.max_completion_tokens", 7),
        ("rollout.temperature", 0.9),
        ("rollout.top_p", 0.9),
        ("rollout.top_k", 5),
        ("model.dtype", "bfloat16"),
        ("data.seed", 1),
        ("data.size", 110),
    ],
)
def test_what_decides_its_figures_changes_it(identify: Identify, key: str, value: Any) -> None:
    assert identify({key: value}) not in (identify(), None)


def test_other_weights_and_another_tokenizer_change_it(identify: Identify, tiny_model_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_model_dir, tmp_path / "copy")
    assert identify(folder=copy) == identify()
    (copy / "generation_config.json").write_text('{"eos_token_id": [1, 9]}')
    assert identify(folder=copy) != identify()
    other = shutil.copytree(tiny_model_dir, tmp_path / "other")
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    assert identify(folder=other) != identify()


@pytest.mark.parametrize(
    "overrides",
    [
        {"rewards": [{"fn": "grpo_core.rewards.simple:reasoning_gym"}]},
        {"model.trust_remote_code": True},
        {"training.python": "/usr/bin/python3"},
    ],
)
def test_somebody_elses_code_is_not_known(identify: Identify, overrides: dict[str, Any]) -> None:
    assert identify(overrides) is None


def evaluate(run_dir: Any, *, by_training: bool = True) -> tuple[list[str], list[str]]:
    """Evaluate a run's initial policy as a flow does, and as its training then does; return who did, and what was reported."""
    evaluated, lines = list[str](), list[str]()

    def process(arguments: Sequence[str], log_file: Path) -> None:
        assert main(list(arguments)) == 0
        evaluated.append(log_file.stem)

    kept = evaluate_if_needed(
        run_dir,
        "base",
        "heldout",
        0,
        evaluate=process,
        digest=weights_digest,
        wait=lambda: pytest.fail("nobody else evaluates"),
        report=lines.append,
    )
    if by_training and is_missing(run_dir, "base", 0):
        with contextlib.closing(Journal(run_dir.journal_file)) as journal:
            evaluate_initial(run_dir, open_evaluator(run_dir.read_config(), find_model(run_dir), run_dir), journal, kept)
        evaluated.append("training")
    return evaluated, lines


def test_an_evaluation_is_made_by_the_first_run_and_used_by_the_second(tiny_run: Any) -> None:
    first, second = tiny_run(name="first"), tiny_run({"loss.beta": 0.5}, name="second")
    assert evaluate(first) == (["training"], [])
    evaluated, (line,) = evaluate(second)
    assert (evaluated, "used again" in line) == ([], True)
    for name in ("base.json", "base.parquet"):
        assert (second.eval / name).read_bytes() == (first.eval / name).read_bytes()
    (made,), (reused,) = read_journal(first.journal_file), read_journal(second.journal_file)
    assert {**made.data, "reused": True} == reused.data
    assert evaluate(second) == ([], [])  # it has it


def test_a_process_of_its_own_and_the_training_make_the_same_and_use_it_for_each_other(tiny_run: Any, own_cache: Path) -> None:
    alone = tiny_run({"training.processes": 2}, name="alone")
    assert evaluate(alone, by_training=False) == (["evaluate-base"], [])
    assert evaluate(tiny_run(name="uses it"))[0] == []
    shutil.rmtree(own_cache)
    first = tiny_run(name="first")
    assert evaluate(first)[0] == ["training"]
    for name in ("base.json", "base.parquet"):
        assert (alone.eval / name).read_bytes() == (first.eval / name).read_bytes()


def test_a_cache_that_cannot_be_written_hurts_nobody(
    tiny_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "file"))
    assert evaluate(tiny_run())[0] == ["training"]
    assert "not kept for other runs" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "differs"), [("lora_alpha", 16, True), ("use_rslora", True, True), ("base_model_name_or_path", "b", False)]
)
def test_what_changes_what_an_adapter_computes_changes_its_digest(key: str, value: Any, differs: bool, tmp_path: Path) -> None:
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj"]}
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    tensors = {name.format("A"): torch.ones(4, 32), name.format("B"): torch.ones(32, 4)}
    for folder, written in (("one", settings), ("other", {**settings, key: value})):
        (tmp_path / folder).mkdir()
        save_file(tensors, tmp_path / folder / "adapter_model.safetensors")
        (tmp_path / folder / "adapter_config.json").write_text(json.dumps(written))
    one, other = (weights_digest(tmp_path / folder) for folder in ("one", "other"))
    assert (one != other) is differs


def test_a_reproduction_evaluates_by_itself(tiny_run: Any) -> None:
    evaluate(tiny_run(name="first"))
    repeated = tiny_run(name="repeated")
    repeated.original.mkdir()
    assert evaluate(repeated) == (["training"], [])


def test_nothing_is_evaluated_where_nothing_is_held_out(tiny_run: Any) -> None:
    assert evaluate(tiny_run({"data.eval_fraction": 0.0})) == ([], [])
