"""The gradient of an embedding that is the vocabulary head as well is autograd's."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from grpo_core.policy.fast.tied import add_rows_in_place
from grpo_core.policy.loading import load_model
from tests.model_folders import SUPPORTED, write_family

IDS = torch.tensor([[1, 5, 5, 2, 7, 5], [3, 1, 1, 1, 9, 2]])


def gradients(model, batches):
    model.zero_grad()
    for ids in batches:
        cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    return {name: weights.grad for name, weights in model.named_parameters()}


@pytest.fixture
def pair(tiny_model):
    """A model with tied weights, and a copy of it whose rows are added in place."""
    assert tiny_model.lm_head.weight is tiny_model.get_input_embeddings().weight
    other = copy.deepcopy(tiny_model)
    add_rows_in_place(other)
    return tiny_model, other


def test_one_pass_has_the_same_bits(pair):
    plain, found = (gradients(model, [IDS]) for model in pair)
    assert plain.keys() == found.keys()
    assert all(torch.equal(plain[name], found[name]) for name in plain)


def test_several_passes_differ_by_rounding(pair):
    plain, found = (gradients(model, [IDS[:1], IDS[1:], IDS]) for model in pair)
    for name, expected in plain.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-7)


def test_no_gradient_of_all_rows_is_made_for_the_tokens_that_were_read(pair):
    sizes = []
    for model in pair:
        with torch.profiler.profile(record_shapes=True) as profiled:
            gradients(model, [IDS])
        shape = list(model.lm_head.weight.shape)
        sizes.append(sum(event.name == "aten::add" and event.input_shapes[:1] == [shape] for event in profiled.events()))
    assert sizes == [1, 0]


@pytest.mark.parametrize("family", SUPPORTED)
def test_every_family_has_its_own_gradient(tmp_path, family):
    """Some scale what they read of the embedding, or share its weights with the head only where they are asked to."""
    model = load_model(write_family(tmp_path / "model", family, SUPPORTED[family] | {"tie_word_embeddings": True}))
    other = copy.deepcopy(model)
    add_rows_in_place(other)
    plain, found = (gradients(one, [IDS]) for one in (model, other))
    for name, expected in plain.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-7)


def test_models_with_a_head_of_its_own_and_frozen_embeddings_are_left_alone(tiny_model):
    tiny_model.lm_head.weight = torch.nn.Parameter(tiny_model.lm_head.weight.detach().clone())
    add_rows_in_place(tiny_model)
    assert not tiny_model.get_input_embeddings()._forward_hooks
    frozen = copy.deepcopy(tiny_model)
    frozen.lm_head.weight = frozen.get_input_embeddings().weight
    add_rows_in_place(frozen.requires_grad_(False))
    with torch.enable_grad():
        assert not frozen(input_ids=IDS).logits.requires_grad
