"""Models made from nothing: the recipe alone decides them, and they can do a third of what they are trained for."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_core.config import load_config
from grpo_core.data.prepare import read_prompts
from grpo_core.errors import ModelError
from grpo_core.evaluation.runner import open_evaluator
from grpo_core.policy.loading import load_model
from grpo_core.policy.sources import scratch
from grpo_core.policy.sources.find import resolve_model
from grpo_core.policy.sources.scratch import (
    IGNORED,
    RECIPES,
    build_model,
    build_tokenizer,
    is_made,
    scratch_model_path,
    supervised_batch,
)
from grpo_core.policy.sources.weight_files import weights_digest
from grpo_core.policy.tokenizer import load_tokenizer

SUMS = RECIPES["sums"]
SHORT = replace(SUMS, warm_up_steps=3, batch_size=8)


@pytest.fixture
def short_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`scratch:sums` with a warm start of a moment, in a cache folder of its own."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    monkeypatch.setattr(scratch, "RECIPES", {"sums": SHORT})


@pytest.mark.usefixtures("short_recipe")
def test_a_model_is_made_once_and_loads_as_any_other(tmp_path: Path) -> None:
    assert not is_made("scratch:sums")
    folder = resolve_model("scratch:sums")
    assert is_made("scratch:sums")
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("scratch:sums") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert sorted(path.name for path in (tmp_path / "models").iterdir() if path.name[0] != ".") == [folder.name]
    assert load_model(folder).num_parameters() == build_model(SHORT).num_parameters()
    assert load_tokenizer(folder).eos_token_id == 1


@pytest.mark.usefixtures("short_recipe")
def test_made_twice_it_has_the_same_weights_and_another_recipe_has_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = weights_digest(scratch_model_path("sums"))
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "again"))
    torch.manual_seed(7)  # whatever was drawn before
    assert weights_digest(scratch_model_path("sums")) == first
    monkeypatch.setattr(scratch, "RECIPES", {"sums": replace(SHORT, seed=1)})
    assert weights_digest(scratch_model_path("sums")) != first


def test_making_one_leaves_torch_as_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    build_model(replace(SHORT, seed=5))
    assert torch.equal(torch.rand(4), expected)
    assert torch.get_num_threads() == threads


def test_an_unknown_recipe_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ModelError, match=r"model\.source scratch:sudoku: no such recipe; known: sums"):
        resolve_model("scratch:sudoku")


def test_prompts_and_answers_come_back_from_their_tokens_and_the_opening_is_one() -> None:
    tokenizer = build_tokenizer(SUMS.task)
    prompt = f"{SUMS.task.opening}7 - 3 + 8 ="
    ids = tokenizer(prompt)["input_ids"]
    assert len(ids) == 1 + len("7 - 3 + 8 =")
    assert tokenizer.decode(ids) == prompt
    for text in ("12", "-3", "12 =", "0 0"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer("x")["input_ids"] == [tokenizer.unk_token_id]


def test_taught_is_the_answer_and_its_end_and_nothing_else() -> None:
    tokenizer = build_tokenizer(SUMS.task)
    ids, labels = supervised_batch(
        [(f"{SUMS.task.opening}7 - 3 + 8 =", "12"), (f"{SUMS.task.opening}1 - 9 - 1 =", "-9 =")], tokenizer
    )
    assert ids.shape == labels.shape == (2, 12 + 5)
    taught = [tokenizer.decode(row[row != IGNORED]) for row in labels]
    assert taught == ["12<|end|>", "-9 =<|end|>"]
    assert torch.equal(labels[0, 12:15], ids[0, 12:15])


def test_taught_answers_are_right_and_go_on_as_often_as_the_recipe_says() -> None:
    numbers = random.Random(1)
    drawn = [SUMS.task.draw(numbers) for _ in range(4000)]
    shares: dict[str, list[bool]] = {"+": [], "-": []}
    for prompt, answer in drawn:
        words = prompt.removeprefix(SUMS.task.opening).split()
        first, second = (int(words[index] + words[index + 1]) for index in (1, 3))
        assert int(answer.removesuffix(" =")) == int(words[0]) + first + second
        shares[words[1]].append(answer.endswith(" ="))
    # Four standard errors of 2,000 draws each: 0.044 and 0.036.
    assert sum(shares["+"]) / len(shares["+"]) == pytest.approx(0.4, abs=0.044)  # loose: a share of random draws
    assert sum(shares["-"]) / len(shares["-"]) == pytest.approx(0.8, abs=0.036)  # loose: a share of random draws


def test_the_preset_reads_its_prompts_whole_and_holds_out_none_that_were_seen() -> None:
    config = load_config("sums_tiny_cpu", {"model.source": str(scratch_model_path("sums"))})
    split = read_prompts(config)
    unknown = build_tokenizer(SUMS.task).unk_token_id
    assert len(split.eval) >= config.evaluation.num_prompts  # type: ignore[operator]
    assert [prompt.text for prompt in (*split.train, *split.eval) if unknown in prompt.token_ids] == []
    assert [prompt.text for prompt in split.eval if not SUMS.task.is_held_out(prompt.text)] == []


def test_after_its_warm_start_a_third_is_right() -> None:
    config = load_config("sums_tiny_cpu")
    result = open_evaluator(config, resolve_model(config.model.source)).evaluate(read_prompts(config).eval[:200], samples=4)
    figures = result.metrics()
    # By guessing, one of 46 sums; by the habit alone, 0.4 of all samples.
    assert 0.25 < figures["eval/heldout/pass_at_1"] < 0.5
    assert 0.25 < figures["eval/heldout/greedy_accuracy"] < 0.7
    assert figures["eval/heldout/pass_at_4"] > 0.6
