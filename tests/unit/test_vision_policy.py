"""Policies that read images: a frozen tower and its features, adapters, saved folders, bfloat16, several processes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_core.errors import DataError, ModelError
from grpo_core.parallel.world import joined
from grpo_core.policy import model_images
from grpo_core.policy.loading import check_folder, open_policy
from grpo_core.policy.model_images import PROCESSOR_FILES, Kept
from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference
from grpo_core.policy.vision import Features, decoder_name, tower_parameters
from grpo_core.run.memory import memory_need, states_of
from grpo_core.run.sizes import shape_of
from tests.support.ranks import RankServer
from tests.unit.test_vision_models import (
    MOST_APART,
    SEEN,
    TEXTS,
    Opened,
    config_of,
    digests,
    encoded,
    folder,
    furthest,
    opened_kind,
    processor_of,
)

__all__ = ["digests", "folder"]
FROZEN = {"model__freeze": ["vision"]}


def proved(*kinds: str) -> list[Any]:
    """Return kinds of models, all but the first of them for `make test-proof`."""
    return [kinds[0], *(pytest.param(kind, marks=pytest.mark.proof) for kind in kinds[1:])]


def gradients(policy: Policy, opened: Opened) -> dict[str, Tensor]:
    """Return the gradients of the sum of all log-probabilities, by name."""
    policy.model.zero_grad()
    completions = opened.completions()
    policy.forward(completions, range(completions.num_rows)).logps.sum().backward()
    return {name: one.grad.clone() for name, one in policy.model.named_parameters() if one.grad is not None}


@pytest.fixture
def towers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect how many tensors each run of a tower was given."""
    runs, right = list[int](), Features.of

    def counted(model: Any, tensors: Any) -> Features:
        runs.append(len(tensors["pixel_values"]))
        return right(model, tensors)

    monkeypatch.setattr(Features, "of", counted)
    return runs


@pytest.mark.parametrize("kind", ["llava", "qwen3_vl"])
def test_a_frozen_tower_is_one_and_its_features_are_kept(folder, digests, towers, kind):
    trained = opened_kind(folder, digests, kind)
    expected = gradients(trained.policy, trained)
    opened = opened_kind(folder, digests, kind, **FROZEN)
    reference = Reference(opened.policy)
    towers.clear()
    found = gradients(opened.policy, opened)
    assert len(towers) == 2  # prompts 1 and 3 have the same image
    completions = opened.completions()
    reference.initial.measure(completions)
    reference.leave_initial()
    reference.current.measure(completions)
    opened.policy.measure(completions)
    assert len(towers) == 2
    tower = {id(weights) for weights in tower_parameters(opened.policy.model)}
    names = {name for name, weights in opened.policy.model.named_parameters() if id(weights) in tower}
    assert found.keys() == expected.keys() - names
    floor = 1e-3 * max(float(one.abs().max()) for one in expected.values())
    for name, one in found.items():
        assert furthest(one, expected[name]) < 1e-4 * max(floor, float(expected[name].abs().max()))
    assert not tower & {id(weights) for weights in opened.policy.parameters()}
    for copied in (reference.initial, reference.current):
        assert tower == {id(weights) for weights in tower_parameters(copied.model)}
        assert len({id(one) for policy in (opened.policy, copied) for one in policy.model.parameters()} - tower) == 2 * len(
            [*opened.policy.parameters()]
        )
    assert reference.distance(opened.policy) == 0


def test_a_tower_that_is_trained_runs_once_for_each_pass(folder, digests, towers):
    opened = opened_kind(folder, digests, "llava")
    completions = opened.completions()
    towers.clear()
    opened.policy.forward(completions, range(completions.num_rows))
    assert towers == [4]  # images of three prompts, whatever their completions


def test_kept_features_are_the_same_bits_whatever_else_is_in_the_batch(folder, digests):
    opened = opened_kind(folder, digests, "idefics3", **FROZEN)
    images, model = opened.policy.images, opened.policy.model

    def pooled(*numbers: int) -> Tensor:
        prompts = [opened.prompts[number].model_input for number in numbers]
        none = torch.zeros(len(prompts), 1, dtype=torch.long)
        features = replace(images, kept=Kept()).read(model, prompts, none, none.bool()).features
        assert features is not None
        return features.pooled

    assert torch.equal(torch.cat([pooled(1), pooled(2)]), pooled(0, 1, 2))


def test_a_model_of_text_has_nothing_to_freeze(tiny_model_dir):
    with pytest.raises(ModelError, match=r"model\.freeze: \[vision\], and .* reads no images"):
        open_policy(tiny_model_dir, config_of(tiny_model_dir, **FROZEN))


@pytest.mark.parametrize("kind", proved("qwen2_5_vl", "llava", "gemma3"))
@pytest.mark.parametrize("targets", [None, ["q_proj", "v_proj"]])
def test_an_adapter_is_of_the_decoder_alone(folder, digests, kind, targets, tmp_path):
    lora = {"model__lora": {"rank": 2, "target_modules": targets}}
    opened = opened_kind(folder, digests, kind, **lora)
    adapted = {name.partition(".lora_")[0] for name, one in opened.policy.model.named_parameters() if one.requires_grad}
    assert len(adapted) == (14 if targets is None else 4)
    assert all(name.startswith(f"{decoder_name(opened.policy.model)}.layers.") for name in adapted)
    with torch.no_grad():
        for weights in opened.policy.parameters():
            weights.normal_(std=0.3)
    completions = opened.completions()
    with torch.no_grad():
        expected = torch.cat([opened.alone(completions, row) for row in range(completions.num_rows)])
    found = opened.policy.logps(completions)
    assert furthest(found[completions.completion_mask], expected) < MOST_APART
    opened.policy.save(tmp_path / "policy", opened.policy.weights())
    again = open_policy(tmp_path / "policy", config_of(folder / kind, **lora), images=folder / "images")
    assert torch.equal(again.logps(completions), found)


@pytest.mark.parametrize("kind", proved("qwen2_5_vl", "llava", "idefics3", "paligemma"))
def test_a_saved_folder_is_a_model_with_its_processor(folder, digests, kind, tmp_path):
    opened = opened_kind(folder, digests, kind)
    with torch.no_grad():
        for weights in opened.policy.parameters():
            weights.add_(0.01)
    completions, saved = opened.completions(), tmp_path / "policy"
    expected = opened.policy.logps(completions)
    opened.policy.save(saved, opened.policy.weights())
    kept = [name for name in PROCESSOR_FILES if (folder / kind / name).exists()]
    assert kept
    assert all((saved / name).read_bytes() == (folder / kind / name).read_bytes() for name in kept)
    again = open_policy(saved, config_of(folder / kind), images=folder / "images")
    assert torch.equal(again.logps(completions), expected)
    made = encoded(kind, processor_of(again), TEXTS[1], SEEN[1])
    assert torch.equal(made["input_ids"], opened.given[1]["input_ids"])
    other = opened_kind(folder, digests, kind).policy
    other.load(opened.policy.stored(saved))
    assert torch.equal(other.logps(completions), expected)


@pytest.mark.parametrize("kind", proved("qwen3_vl", "llava", "gemma3"))
def test_in_bfloat16_the_log_probabilities_are_those_of_float32_but_for_rounding(folder, digests, kind):
    exact, rounded = (opened_kind(folder, digests, kind, model__dtype=dtype) for dtype in ("float32", "bfloat16"))
    completions = exact.completions()
    expected, found = (opened.policy.logps(completions) for opened in (exact, rounded))
    assert 0 < furthest(found, expected) < 0.2


def test_an_image_that_its_prompt_was_not_made_with_is_refused(folder, digests):
    opened = opened_kind(folder, digests, "qwen2_5_vl")
    completions = opened.completions()
    for images, fault in (((digests[1],), "takes .* tokens, and its prompt has"), (("0" * 64,), "cannot be read")):
        prompts = tuple(replace(one, images=images) if one.images else one for one in opened.prompts)
        with pytest.raises(DataError, match=fault):
            opened.policy.logps(replace(completions, prompts=prompts))


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(model_images, "MOST_BYTES", 10)
    kept, made = Kept(), list[int]()

    def get(key: int) -> int:
        return kept.get(key, lambda: made.append(key) or key, lambda _: 4)

    assert [get(key) for key in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2]


def test_the_memory_of_a_frozen_tower_is_needed_once(folder, digests):
    place = folder / "qwen2_5_vl"
    opened_kind(folder, digests, "qwen2_5_vl")
    outline = check_folder(place)
    shape, trained, frozen = shape_of(place, outline), config_of(place), config_of(place, **FROZEN)
    assert shape is not None
    assert shape.tower is not None
    assert (shape.tower.weights, shape.tower.patches, shape.tower.layers) == (outline.tower, 4, 2)
    saved = states_of(trained, shape)[0] - states_of(frozen, shape)[0]
    assert saved == 4 * outline.tower * 4  # once of five: policy, reference, initial policy, two moments
    of_text = replace(shape, tower=None)
    needs = [memory_need(config, one, padded=False) for config, one in ((trained, shape), (frozen, shape), (trained, of_text))]
    assert needs[0].update > needs[2].update
    assert needs[1].update < needs[2].update


PIECES: tuple[Sequence[int], ...] = ((0, 1), range(2, 8))
"""Rows of text alone, and those of prompts with images."""


def gradients_in_each_process(place: str) -> None:
    """Be one of two processes, of which one has the prompts with images, and store the gradients."""
    here = Path(place)
    with joined(2, 1, 60, torch.device("cpu")) as world:
        opened = opened_kind(here, json.loads((here / "digests.json").read_text()), "llava_next")
        policy = replace(opened.policy, world=world)
        completions = opened.completions()
        world.deal(PIECES, lambda rows, _: policy.forward(completions, rows).logps.sum().backward())
        policy.end_passes()
        found = {name: one.grad for name, one in policy.model.named_parameters() if one.grad is not None}
    torch.save(found, here / f"gradients_{world.rank}.pt")


@pytest.mark.proof
def test_two_processes_have_the_gradients_of_one_with_images_in_one_of_them_alone(folder, digests, tmp_path):
    (folder / "digests.json").write_text(json.dumps(digests))
    opened = opened_kind(folder, digests, "llava_next")
    with RankServer() as server:
        codes = server.run("tests.unit.test_vision_policy:gradients_in_each_process", str(folder), 2, tmp_path)
    assert not any(codes)
    wanted = gradients(opened.policy, opened)
    floor = 1e-3 * max(float(one.abs().max()) for one in wanted.values())
    for rank in range(2):
        found = torch.load(folder / f"gradients_{rank}.pt")
        assert found.keys() == wanted.keys()
        for name, one in wanted.items():
            assert furthest(found[name], one) < 1e-4 * max(floor, float(one.abs().max()))
