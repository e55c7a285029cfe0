"""What is found out about a model before a run begins: in a process of its own, once for each state of its folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.cli.run import print_how_to_resume, working_in
from grpo_core.errors import ModelError, TrainingError
from grpo_core.policy.sources.find import require_model
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.run.preflight import Preflight, check_start
from tests.model_folders import SIZES, SUPPORTED, prefixed, write_family

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
    assert "27 are of no use: _orig_mod.lm_head.weight" in fault
    assert check(folder).faults == (fault,)


@pytest.mark.proof
def test_lengths_beyond_positions_are_warned_about(check: Check, tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "gpt2", SUPPORTED["gpt2"])
    found = check(folder, **{"rollout.max_prompt_tokens": 40, "rollout.max_completion_tokens": 32, "model.lora.rank": 2})
    assert found.faults[0].startswith("model.lora: no layer of this model is a plain linear layer")
    text = "max_prompt_tokens 40 + max_completion_tokens 32 = 72, and the model was made for texts of at most 64 tokens"
    assert text in found.warnings[0]


@pytest.mark.proof
@pytest.mark.parametrize("family", ["gpt_oss", "mixtral"])
def test_weights_that_no_adapter_reaches_are_named(family: str, check: Check, tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", family, SUPPORTED[family])
    found = check(folder, **{"model.lora.rank": 2})
    assert found.faults == ()
    (text,) = (warning for warning in found.warnings if "null reaches plain linear layers" in warning)
    assert ".mlp.experts.gate_up_proj" in text
    assert found.adapter is not None
    explicit = check(folder, **{"model.lora.rank": 2, "model.lora.target_modules": ["o_proj"]})
    assert not [warning for warning in explicit.warnings if "null reaches" in warning]


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


def test_a_resume_that_would_meet_the_same_model_or_image_is_not_proposed(
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
    assert not proposed(f"{run_dir.images / (64 * 'd')}: an image of the frozen prompts cannot be read (No such file)")
    assert proposed(f"{run_dir.path.parent}/other/data/images/{64 * 'd'}: was changed")


@pytest.mark.proof
def test_a_start_says_what_its_adapter_leaves_out(tiny_run: Callable[..., RunDir], tmp_path: Path) -> None:
    from grpo_core.training.__main__ import main

    folder = write_family(tmp_path / "model", "qwen3_moe", SUPPORTED["qwen3_moe"])
    run_dir = tiny_run({"model.source": str(folder), "model.lora.rank": 2, "training.steps": 1, "data.chat_template": False})
    assert main([str(run_dir.path)]) == 0
    assert "model.layers.*.mlp.experts.gate_up_proj" in read_journal(run_dir.journal_file)[0].data["left_out"]
