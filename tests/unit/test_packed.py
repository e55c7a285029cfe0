"""Packed weights give the log-probabilities of plain ones, leave the model as it was, and are not used where they would not."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_core.policy.fast import path
from grpo_core.policy.fast import products as packed
from grpo_core.policy.fast.path import why_plain
from grpo_core.policy.fast.products import prepared_weights
from tests.policies import policy_of, sampled
from tests.support.processor import packs_bfloat16, packs_weights


@pytest.fixture(scope="module")
def large():
    """A model whose matrices are worth packing, with biases in its attention."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=384,
        intermediate_size=768,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        attention_bias=True,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias)
    return model


def logps(model, ids):
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=ids).logits, dim=-1)


IDS = torch.arange(2, 42).unsqueeze(0)


@packs_weights
def test_packed_logps_are_as_near_to_those_in_double_precision_as_plain_ones(large):
    exact = logps(copy.deepcopy(large).double(), IDS)
    plain = logps(large, IDS)
    with prepared_weights(large, "float32"):
        found = logps(large, IDS)
    assert float((found - plain).abs().max()) < 1e-5
    assert float((found - exact).abs().max()) < max(3 * float((plain - exact).abs().max()), 1e-6)


@packs_weights
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=packs_bfloat16)])
def test_sampling_repeats_and_its_logps_are_the_plain_ones(large, dtype):
    policy = policy_of(large, dtype=dtype, packed=why_plain(large, dtype) is None)
    assert policy.path.packed
    drawn, again = (sampled(policy, group_size=4, tokens=24) for _ in range(2))
    assert torch.equal(drawn.completion_ids, again.completion_ids)
    assert torch.equal(drawn.sampling_per_token_logps, again.sampling_per_token_logps)
    difference = (drawn.sampling_per_token_logps - policy.logps(drawn)).abs()[drawn.completion_mask]
    assert float(difference.mean()) < {"float32": 1e-5, "bfloat16": 0.05}[dtype]


def test_small_models_other_devices_and_processors_stay_plain(tiny_model, large, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert why_plain(tiny_model, "float32") == "no matrix has 100000 weights"
    assert why_plain(copy.deepcopy(large).to("meta"), "float32") == "they are for a CPU"
    monkeypatch.setattr(path, "has_bfloat16_kernels", lambda: False)
    assert why_plain(large, "bfloat16") == "the processor has no fast products in bfloat16"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert why_plain(large, "float32") == "the processor has no AVX"


def test_a_product_that_is_wrong_here_is_not_used(large, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(
        packed, "packed_product", lambda weight, bias, **_: lambda rows: nn.functional.linear(rows, 1.01 * weight, bias)
    )
    assert "differ by" in why_plain(large, "float32")

    def missing(weight, bias, **_):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    monkeypatch.setattr(packed, "packed_product", missing)
    assert "AttributeError" in why_plain(large, "float32")
