"""The model made from nothing: its recipe alone decides it, and it can do a third of what it is trained for."""

from pathlib import Path

import pytest
import torch

from grpo_core.config import load_config
from grpo_core.data.prepare import read_prompts
from grpo_core.evaluation.runner import open_evaluator
from grpo_core.policy.loading import load_model
from grpo_core.policy.sources import scratch
from grpo_core.policy.sources.find import is_made, load_tokenizer, resolve_model, weights_digest
from grpo_core.policy.sources.scratch import IGNORED, OPENING, build_tokenizer, supervised_batch


@pytest.fixture
def short_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`scratch:sums` with a warm start of a moment, in a cache folder of its own."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    monkeypatch.setattr(scratch, "WARM_UP_STEPS", 3)
    monkeypatch.setattr(scratch, "BATCH_SIZE", 8)


@pytest.mark.usefixtures("short_recipe")
def test_a_model_is_made_once_always_the_same_and_leaves_torch_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_made("scratch:sums")
    torch.manual_seed(3)
    expected, threads = torch.rand(4), torch.get_num_threads()
    torch.manual_seed(3)
    folder = resolve_model("scratch:sums")
    assert torch.equal(torch.rand(4), expected)
    assert torch.get_num_threads() == threads
    assert is_made("scratch:sums")
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("scratch:sums") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert load_tokenizer(folder).eos_token_id == 1
    assert load_model(folder).config.hidden_size == scratch.SIZES["hidden_size"]
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "again"))
    assert weights_digest(resolve_model("scratch:sums")) == weights_digest(folder)
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(scratch, "SEED", 1)
    assert weights_digest(resolve_model("scratch:sums")) != weights_digest(folder)


def test_prompts_and_answers_come_back_from_their_tokens_and_answers_alone_are_taught() -> None:
    tokenizer = build_tokenizer()
    prompt = f"{OPENING}7 - 3 + 8 ="
    ids = tokenizer(prompt)["input_ids"]
    assert len(ids) == 1 + len("7 - 3 + 8 =")
    assert [tokenizer.decode(tokenizer(text)["input_ids"]) for text in (prompt, "-3", "12 =")] == [prompt, "-3", "12 ="]
    assert tokenizer("x")["input_ids"] == [tokenizer.unk_token_id]
    ids, labels = supervised_batch([(prompt, "12"), (f"{OPENING}1 - 9 - 1 =", "-9 =")], tokenizer)
    assert ids.shape == labels.shape == (2, 12 + 5)
    assert [tokenizer.decode(row[row != IGNORED]) for row in labels] == ["12<|end|>", "-9 =<|end|>"]
    assert torch.equal(labels[0, 12:15], ids[0, 12:15])


def test_the_preset_holds_out_prompts_that_were_never_seen_and_a_third_is_right_after_the_warm_start() -> None:
    config = load_config("sums_tiny_cpu")
    folder, split = resolve_model(config.model.source), read_prompts(config)
    unknown = build_tokenizer().unk_token_id
    assert len(split.eval) >= config.evaluation.num_prompts  # type: ignore[operator]
    assert [prompt.text for prompt in (*split.train, *split.eval) if unknown in prompt.token_ids] == []
    assert [prompt.text for prompt in split.eval if not scratch.is_held_out(prompt.text)] == []
    figures = open_evaluator(config, folder).evaluate(split.eval[:200], samples=4).metrics()
    # By guessing, one of 46 sums; by the habit alone, 0.4 of all samples.
    assert 0.25 < figures["eval/heldout/pass_at_1"] < 0.5
    assert 0.25 < figures["eval/heldout/greedy_accuracy"] < 0.7
    assert figures["eval/heldout/pass_at_4"] > 0.6
