"""Token log-probabilities and entropies against a plain log-softmax, whole and in chunks."""

import math

import pytest
import torch

from grpo_core.algorithm.logprobs import token_full_kl, token_logps, token_logps_and_entropy
from grpo_core.policy.outline import CHUNK_BYTES, KEPT_BYTES, tokens_at_once


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([0, 10, 3, 3, 7, 1, 9])
    return hidden, weight, tokens


def naive(hidden, weight, tokens, temperature):
    logps = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    return torch.stack([row[token] for row, token in zip(logps, tokens, strict=True)]), -(logps.exp() * logps).sum(-1)


def with_gradients(logps, hidden, weight):
    coefficients = torch.arange(1.0, len(logps) + 1, dtype=logps.dtype)
    return logps.detach(), *torch.autograd.grad((logps * coefficients).sum(), (hidden, weight), retain_graph=True)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.5])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 100])
def test_values_and_gradients_are_those_of_a_plain_log_softmax_whatever_the_chunk(inputs, temperature, chunk_tokens):
    hidden, weight, tokens = inputs
    logps, entropy = token_logps_and_entropy(hidden, lambda states: states @ weight.T, tokens, temperature, chunk_tokens)
    expected_logps, expected_entropy = naive(hidden, weight, tokens, temperature)
    torch.testing.assert_close(entropy, expected_entropy.detach(), rtol=1e-12, atol=1e-12)
    assert not entropy.requires_grad
    assert torch.equal(token_logps(hidden, lambda states: states @ weight.T, tokens, temperature, chunk_tokens), logps)
    torch.testing.assert_close(
        with_gradients(logps, hidden, weight), with_gradients(expected_logps, hidden, weight), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
def test_the_exact_kl_is_of_both_policies_at_the_temperature_and_pulls_at_the_policy_alone(inputs, temperature, chunk_tokens):
    hidden, weight, _ = inputs
    generator = torch.Generator().manual_seed(1)
    # The reference may have another width; here its states want a gradient, and must not get one.
    ref_hidden = torch.randn(7, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    ref_weight = torch.randn(11, 4, generator=generator, dtype=torch.float64)
    exact = token_full_kl(
        hidden,
        lambda states: states @ weight.T,
        ref_hidden,
        lambda states: states @ ref_weight.T,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
    # Witness: torch's own distributions.
    policy = torch.distributions.Categorical(logits=hidden @ weight.T / temperature)
    reference = torch.distributions.Categorical(logits=(ref_hidden @ ref_weight.T).detach() / temperature)
    expected = torch.distributions.kl_divergence(policy, reference)
    torch.testing.assert_close(
        with_gradients(exact, hidden, weight), with_gradients(expected, hidden, weight), rtol=1e-10, atol=1e-12
    )
    exact.sum().backward()
    assert ref_hidden.grad is None


def test_by_hand():
    # logits log 1, log 3 -> probabilities 1/4, 3/4; at temperature 1/2 the weights are squared: 1/10, 9/10
    hidden = torch.tensor([[0.0, math.log(3)]] * 2, dtype=torch.float64)
    logps, entropy = token_logps_and_entropy(hidden, lambda states: states, torch.tensor([0, 1]), 1.0)
    assert logps.exp().tolist() == pytest.approx([0.25, 0.75], abs=1e-12)
    assert entropy.tolist() == pytest.approx([-(0.25 * math.log(0.25) + 0.75 * math.log(0.75))] * 2, abs=1e-12)
    logps, _ = token_logps_and_entropy(hidden, lambda states: states, torch.tensor([0, 1]), 0.5)
    assert logps.exp().tolist() == pytest.approx([0.1, 0.9], abs=1e-12)


def test_low_precision_logits_are_normalised_in_fp32(inputs):
    hidden, weight, tokens = (value.detach() for value in inputs)
    low = (hidden @ weight.T).bfloat16()
    logps, entropy = token_logps_and_entropy(low, lambda states: states, tokens, 1.0)
    expected = torch.log_softmax(low.double(), dim=-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    assert logps.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logps.double(), expected, rtol=0, atol=1e-5)


def test_logits_are_kept_up_to_a_size_and_else_computed_in_chunks():
    assert tokens_at_once(4096, 1000) == 4096
    assert 4 * 151_936 * tokens_at_once(4096, 151_936) <= CHUNK_BYTES
    kept = KEPT_BYTES // (4 * 1024)
    assert [tokens_at_once(number, 1024) for number in (kept, kept + 1)] == [kept, CHUNK_BYTES // (4 * 1024)]
    assert tokens_at_once(10, 10**9) == 1
