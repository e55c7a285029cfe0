"""What is found out about a model before a run begins: in a process of its own, once for each state of its folder."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.cli.run import print_how_to_resume, working_in
from grpo_core.errors import ModelError, TrainingError
from grpo_core.policy import loading
from grpo_core.policy.loading import load_model
from grpo_core.policy.opening import open_policy, require_positions
from grpo_core.policy.sources.find import require_model
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.run.preflight import Preflight, check_start
from tests.model_folders import SIZES, SUPPORTED, UNSUPPORTED, prefixed, write_family

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]
Check = Callable[..., Preflight]


@pytest.fixture
def check(tiny_config: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Return a function that checks a run with the model of a folder, in a cache of its own."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "{n} + 1 =", "answer": "{n + 1}"}}\n' for n in range(20)))
    data = {"data.source": f"file:{tmp_path / 'rows.jsonl'}", "data.task_args": {}, "data.chat_template": False}

    def act(folder: Path, **overrides: Any) -> Preflight:
        keys = {**data, "rewards": [{"fn": "exact_answer"}], "model.source": str(folder), **overrides}
        return check_start(tiny_config(keys), ())

    return act


@pytest.mark.proof
def test_a_folder_is_looked_at_in_a_process_and_again_only_where_it_changed(check: Check, tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "qwen2", SIZES)
    assert check(folder).faults == ()
    (kept,) = (tmp_path / "cache" / "outlines").iterdir()
    written = kept.stat().st_mtime_ns
    assert check(folder).faults == ()
    assert [(file, file.stat().st_mtime_ns) for file in (tmp_path / "cache" / "outlines").iterdir()] == [(kept, written)]
    prefixed("_orig_mod.")(folder)
    (fault,) = check(folder).faults
    assert "27 are missing: lm_head.weight, model.embed_tokens.weight, model.layers.0.input_layernorm.weight" in fault
    assert "27 are of no use: _orig_mod.lm_head.weight" in fault
    assert fault.endswith("take the prefix _orig_mod. off the names")
    assert check(folder).faults == (fault,)


@pytest.mark.proof
def test_positions_that_are_learned_bound_a_run_and_others_are_warned_about(check: Check, tmp_path: Path) -> None:
    lengths = {"rollout.max_prompt_tokens": 40, "rollout.max_completion_tokens": 32}
    learned = write_family(tmp_path / "learned", "gpt2", SUPPORTED["gpt2"])
    text = "max_prompt_tokens 40 + max_completion_tokens 32 = 72, and the model"
    found = check(learned, **lengths, **{"model.lora.rank": 2})
    assert found.faults[0] == f"rollout: {text} has no positions beyond 64 tokens; lower one of the two"
    assert found.faults[1].startswith("model.lora: no layer of this model is a plain linear layer")
    rotary = write_family(tmp_path / "rotary", "llama", {**SIZES, "max_position_embeddings": 64})
    found = check(rotary, **lengths)
    assert found.faults == ()
    assert found.warnings == (f"rollout: {text} was made for texts of at most 64 tokens; lower one of the two",)


@pytest.mark.parametrize("family", ["gpt2", "opt", "gptj", "mpt"])
def test_a_training_refuses_lengths_beyond_positions(family: str, tiny_config: Callable[..., Any], tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", family, SUPPORTED[family])
    lengths = {"rollout.max_prompt_tokens": 200, "rollout.max_completion_tokens": 57}
    config = tiny_config({"model.source": str(folder), **lengths})
    policy = open_policy(folder, config)
    with pytest.raises(ModelError, match="has no positions beyond"):
        require_positions(policy, config)
    with pytest.raises((IndexError, RuntimeError)):  # what it would come to
        policy.model(input_ids=torch.ones(1, 257, dtype=torch.long))


@pytest.mark.proof
@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_moe", "mixtral", "deepseek_v3"])
def test_weights_that_no_adapter_reaches_are_named(family: str, check: Check, tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", family, SUPPORTED[family])
    found = check(folder, **{"model.lora.rank": 2})
    assert found.faults == ()
    (text,) = (warning for warning in found.warnings if "null reaches plain linear layers" in warning)
    assert ".mlp.experts.gate_up_proj" in text
    assert found.adapter is not None
    explicit = check(folder, **{"model.lora.rank": 2, "model.lora.target_modules": ["o_proj"]})
    assert not [warning for warning in explicit.warnings if "null reaches" in warning]


@pytest.mark.parametrize("family", ["gemma2", "nanochat", "cohere", "granite"])
def test_logits_that_are_changed_after_the_head_are_found_by_value_too(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soft cap of 30 changes logits of a random tiny model by less than 1e-4; it is looked at where they are 100."""
    folder = write_family(tmp_path / "model", family, UNSUPPORTED[family][0])
    monkeypatch.setattr(loading, "LOGITS_CHANGED_BY", ())
    with pytest.raises(ModelError, match="has other logits than its vocabulary head"):
        load_model(folder)


def test_a_checkpoint_and_a_run_point_at_their_policy(tmp_path: Path) -> None:
    for number in (8, 12):
        write_family(tmp_path / "run" / "checkpoints" / f"step_{number:06}" / "policy", "llama", SIZES)
    policy = tmp_path / "run" / "checkpoints" / "step_000012" / "policy"
    for place in (policy.parent, policy.parents[1], policy.parents[2]):
        with pytest.raises(ModelError, match=rf"has no config\.json.*; its policy is {policy}$"):
            require_model(str(place))
    require_model(str(policy))
    (policy / "config.json").rename(policy / "adapter_config.json")
    with pytest.raises(ModelError, match=f"its policy is an adapter: .* model.lora.init_from={policy}"):
        require_model(str(policy.parent))


def test_a_resume_that_would_meet_the_same_model_is_not_proposed(
    tiny_run: Callable[..., RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    def proposed(message: str) -> bool:
        with pytest.raises(TrainingError), working_in(run_dir.path):
            raise TrainingError(message)
        capsys.readouterr()
        print_how_to_resume()
        return "resume with" in capsys.readouterr().err

    run_dir = tiny_run()
    assert not proposed("model.source: llama in folder: it cannot be loaded")
    assert proposed("rewards.0.fn: raised KeyError")
    run_dir.checkpoints.mkdir()
    assert proposed("model.source: llama in folder: it cannot be loaded")


@pytest.mark.proof
def test_a_start_says_what_its_adapter_leaves_out(tiny_run: Callable[..., RunDir], tmp_path: Path) -> None:
    from grpo_core.training.__main__ import main

    folder = write_family(tmp_path / "model", "qwen3_moe", SUPPORTED["qwen3_moe"])
    run_dir = tiny_run({"model.source": str(folder), "model.lora.rank": 2, "training.steps": 1, "data.chat_template": False})
    assert main([str(run_dir.path)]) == 0
    assert "model.layers.*.mlp.experts.gate_up_proj" in read_journal(run_dir.journal_file)[0].data["left_out"]


def test_other_weights_are_not_loaded_silently(tiny_config: Callable[..., Any], tiny_model_dir: Path, tmp_path: Path) -> None:
    policy = open_policy(tiny_model_dir, tiny_config())
    weights = policy.weights()
    assert policy.misfit(weights) is None
    assert policy.misfit({**weights, "v_head.weight": torch.zeros(1, 32)}) == "v_head.weight is no weight of this model"
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    prefixed("module.")(folder)
    with pytest.raises(ModelError, match=r"take the prefix module\. off the names"):
        load_model(folder)
