"""Layers run with few operations give the tokens of transformers' layers, and are used only where they do."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_core.policy.device import compute_in
from grpo_core.policy.fast import caches, decoding
from grpo_core.policy.fast.decoding import LeanDecoding
from grpo_core.policy.fast.path import SamplingPath, why_not_lean
from tests.policies import policy_of, sampled
from tests.support.processor import PACKED
from tests.unit.test_grouped import EITHER, FITTING, LLAMA_LIKE, OTHERS

ROWS = {"lengths": range(2, 14), "group_size": 4, "tokens": 24}


@pytest.fixture(params=FITTING.values(), ids=FITTING)
def fitting(request):
    torch.manual_seed(0)
    model = request.param().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms are 0 and 1 when a model is made
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_of_the_family_are_decoded_so(fitting, dtype):
    assert why_not_lean(fitting, dtype, packed=False) is None


def test_tokens_and_log_probabilities_are_those_of_transformers_layers(fitting):
    policy = policy_of(fitting)
    plain, found = sampled(policy, **ROWS), sampled(replace(policy, path=SamplingPath(lean=True)), **ROWS)
    assert torch.equal(found.completion_ids, plain.completion_ids)
    torch.testing.assert_close(found.sampling_per_token_logps, plain.sampling_per_token_logps, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.sampling_per_token_logps, policy.logps(found), rtol=0, atol=1e-5)


def see_prompts_by(seen, monkeypatch):
    """Have rows see their prompts in one way, however long these are."""
    monkeypatch.setattr(decoding, "seen_by_rows", lambda *given: seen(*given[:-1]))


@pytest.mark.parametrize("lengths", [(20, 3, 16), (9,)], ids=["padded", "one"])
def test_prompts_that_rows_share_give_the_tokens_of_copied_ones(fitting, lengths, monkeypatch):
    """Rows leave as they end, so that groups become unequal, and a prompt may have none left."""
    policy, rows = replace(policy_of(fitting), path=SamplingPath(lean=True)), ROWS | {"lengths": lengths, "tokens": 40}
    see_prompts_by(caches.CopiedPrompts, monkeypatch)
    copied = sampled(policy, **rows)
    assert len(set(copied.lengths().tolist())) > 2
    see_prompts_by(caches.SharedPrompts, monkeypatch)
    shared = sampled(policy, **rows)
    assert torch.equal(shared.completion_ids, copied.completion_ids)
    torch.testing.assert_close(shared.sampling_per_token_logps, copied.sampling_per_token_logps, rtol=0, atol=1e-5)
    torch.testing.assert_close(shared.sampling_per_token_logps, policy.logps(shared), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("length", "group_size", "expected"), [(128, 2, "Shared"), (127, 2, "Copied"), (128, 1, "Copied")])
def test_long_prompts_of_several_rows_are_shared(tiny_model, monkeypatch, length, group_size, expected):
    made = []
    for kind in (caches.SharedPrompts, caches.CopiedPrompts):
        monkeypatch.setattr(
            kind, "__init__", lambda self, *given, right=kind.__init__: made.append(type(self).__name__) or right(self, *given)
        )
    sampled(policy_of(tiny_model, lean=True), lengths=(3, length), group_size=group_size, tokens=4)
    assert made == [f"{expected}Prompts"]


def test_20_000_tokens_are_those_of_transformers_layers(tiny_model):
    policy = policy_of(tiny_model)
    plain, found = (
        sampled(replace(policy, path=SamplingPath(lean=lean)), **ROWS | {"tokens": 200, "group_size": 32})
        for lean in (False, True)
    )
    assert int(plain.completion_mask.sum()) > 20_000
    assert torch.equal(found.completion_ids, plain.completion_ids)
    torch.testing.assert_close(found.sampling_per_token_logps, plain.sampling_per_token_logps, rtol=0, atol=1e-5)


def test_the_weights_are_those_of_the_moment(tiny_model):
    policy = policy_of(copy.deepcopy(tiny_model), lean=True)
    before = sampled(policy, **ROWS)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.5)
    after = sampled(policy, **ROWS)
    assert not torch.equal(after.completion_ids, before.completion_ids)
    torch.testing.assert_close(after.sampling_per_token_logps, policy.logps(after), rtol=0, atol=1e-5)


@pytest.mark.parametrize("make", [*OTHERS.values(), *EITHER.values()], ids=[*OTHERS, *EITHER])
def test_other_architectures_are_decoded_as_transformers_runs_them(make):
    torch.manual_seed(0)
    assert why_not_lean(make().eval(), "float32", packed=False) is not None


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_length_are_left_to_transformers(kind):
    factors = {"factor": 2.0} if kind == "dynamic" else {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6, "factor": 2.0}
    rope = {"rope_type": kind, "rope_theta": 10000.0, "original_max_position_embeddings": 64, **factors}
    model = LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE, rope_parameters=rope)).eval()
    assert "rotary" in why_not_lean(model, "float32", packed=False)


def test_layers_that_are_wrong_here_are_not_used(tiny_model, monkeypatch):
    assert why_not_lean(tiny_model, "float32", packed=False) is None
    assert "cannot be computed so" in why_not_lean(copy.deepcopy(tiny_model).to("meta"), "float32", packed=False)
    with monkeypatch.context() as wrong:
        wrong.setattr(
            caches.SharedPrompts, "_by_row", lambda self, *given, own=caches.SharedPrompts._by_row: own(self, *given).flip(0)
        )
        assert "differ by" in why_not_lean(tiny_model, "float32", packed=False)
    right = decoding._rotated
    monkeypatch.setattr(decoding, "_rotated", lambda states, cosine, sine: right(states, sine, cosine))
    assert "differ by" in why_not_lean(tiny_model, "float32", packed=False)


@pytest.mark.parametrize("packed", PACKED)
def test_the_head_is_computed_in_float32_under_bfloat16(packed, monkeypatch):
    monkeypatch.setattr("grpo_core.policy.fast.products.LEAST_WEIGHTS", 1000)
    model = FITTING["llama"]().eval()
    made = LeanDecoding.of(model, torch.bfloat16, packed=packed)
    hidden = torch.randn(3, 48)
    with torch.no_grad(), compute_in("bfloat16", hidden.device):
        found = made.logits(hidden)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, hidden @ model.lm_head.weight.detach().T, rtol=0, atol=1e-5)
