"""Layers that are computed again in the backward pass: the same values and gradients, and little is kept."""

from dataclasses import replace

import pytest
import torch

from grpo_core.errors import ModelError
from grpo_core.policy.forward import recomputing, refuse_other_layers, rows_hidden
from tests.policies import completions_of, policy_of, sampled
from tests.unit.test_grouped import EITHER, FITTING, OTHERS, ROWS
from tests.unit.test_prefix import COMPLETIONS, PROMPT_OF_ROW, PROMPTS, model, naive

assert model  # a fixture: the tiny model in float64


def hidden_of(model, *, again):
    return rows_hidden(model, *completions_of(PROMPTS, PROMPT_OF_ROW, COMPLETIONS), replayed=again)


def weighted(values):
    return (torch.linspace(-1, 2, values.numel(), dtype=values.dtype).view_as(values) * values).sum()


def gradients(model, values):
    return torch.autograd.grad(weighted(values), list(model.base_model.parameters()))


def kept_bytes(function):
    """Bytes of the tensors that a pass keeps for its backward pass, each storage once, weights left out."""
    kept = {}

    def note(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = function()
    return sum(kept.values()), result


def test_gradients_are_those_of_rows_with_prompts_of_their_own(model):
    with recomputing(model):
        found = hidden_of(model, again=True)
    head = model.get_output_embeddings()
    tokens = torch.tensor([token for row in COMPLETIONS for token in row])
    logps = torch.log_softmax(head(found), dim=-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    theirs = naive(model, PROMPTS, PROMPT_OF_ROW, COMPLETIONS)
    torch.testing.assert_close(logps, theirs, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradients(model, logps), gradients(model, theirs), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("padded", [False, True])
def test_a_policy_keeps_less_and_gives_the_same(tiny_model, padded):
    usual = policy_of(tiny_model, temperature=0.9, padded=padded)
    again = replace(usual, recomputed=True)
    completions = sampled(usual, **ROWS)
    rows = list(range(completions.num_rows))

    def figures(policy):
        return policy.forward(completions, rows)

    (much, expected), (little, found) = (kept_bytes(lambda policy=policy: figures(policy).logps) for policy in (usual, again))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradients(tiny_model, found), gradients(tiny_model, expected), rtol=1e-4, atol=1e-6)
    assert little < much / 2
    with torch.no_grad():
        assert torch.equal(figures(again).logps, figures(usual).logps), "without a gradient nothing is computed otherwise"


@pytest.mark.parametrize("make", [*FITTING.values(), *EITHER.values()], ids=[*FITTING, *EITHER])
def test_architectures_that_are_taken(make):
    torch.manual_seed(0)
    model = make().eval().double()
    refuse_other_layers(model)
    expected = hidden_of(model, again=False)
    with recomputing(model):
        found = hidden_of(model, again=True)
    torch.testing.assert_close(gradients(model, found), gradients(model, expected), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_architectures_that_are_refused(make):
    with pytest.raises(
        ModelError, match=r"training\.gradient_checkpointing: \w+ForCausalLM has layers other than full attention"
    ):
        refuse_other_layers(make())
