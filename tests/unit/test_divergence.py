"""Divergences of next-token distributions: by hand, against torch's distributions and NumPy, and their inequalities."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.algorithm.divergence import divergences
from grpo_core.algorithm.logprobs import token_divergences

LOGITS = st.lists(st.floats(-8, 8), min_size=5, max_size=5)


def logps(*probabilities):
    return torch.tensor([probabilities], dtype=torch.float64).log()


def log_softmax(logits):
    return torch.tensor([logits], dtype=torch.float64).log_softmax(-1)


def test_two_coins_by_hand():
    # pi = (1/2, 1/2), pi_0 = (1/10, 9/10)
    found = divergences(logps(0.5, 0.5), logps(0.1, 0.9))
    assert float(found.full) == pytest.approx(0.5 * math.log(5) + 0.5 * math.log(5 / 9), abs=1e-12)
    assert float(found.forward) == pytest.approx(0.1 * math.log(1 / 5) + 0.9 * math.log(9 / 5), abs=1e-12)
    assert float(found.total_variation) == pytest.approx(0.4, abs=1e-12)
    assert float(found.renyi_half) == pytest.approx(-2 * math.log(math.sqrt(0.05) + math.sqrt(0.45)), abs=1e-12)
    assert divergences(logps(0.6, 0.4), logps(0.1, 0.9)).top1_changed.tolist() == [1.0]
    assert divergences(logps(0.4, 0.6), logps(0.1, 0.9)).top1_changed.tolist() == [0.0]


def test_equal_distributions_do_not_diverge():
    same = log_softmax([0.3, -2.0, 1.5, 4.0, 0.0])
    found = divergences(same, same)
    assert [float(value) for value in found] == pytest.approx([0.0] * 5, abs=1e-12)
    assert [float(found.full), float(found.forward), float(found.total_variation)] == [0.0, 0.0, 0.0]


@given(policy=LOGITS, other=LOGITS)
def test_they_are_torchs_and_numpys_and_keep_their_inequalities(policy, other):
    found = divergences(log_softmax(policy), log_softmax(other))
    one, two = (torch.distributions.Categorical(logits=torch.tensor(logits, dtype=torch.float64)) for logits in (policy, other))
    p, q = one.probs.numpy(), two.probs.numpy()
    full, forward, moved, renyi, _ = (float(value) for value in found)
    assert full == pytest.approx(float(torch.distributions.kl_divergence(one, two)), rel=1e-9, abs=1e-12)
    assert forward == pytest.approx(float(torch.distributions.kl_divergence(two, one)), rel=1e-9, abs=1e-12)
    assert moved == pytest.approx(float(np.abs(p - q).sum() / 2), rel=1e-9, abs=1e-12)
    assert renyi == pytest.approx(-2 * math.log(min(1.0, float(np.sqrt(p * q).sum()))), rel=1e-7, abs=1e-12)
    assert moved <= math.sqrt(full / 2) + 1e-9  # Pinsker
    assert renyi <= min(full, forward) + 1e-9  # the order of Renyi divergences


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("chunk_tokens", [1, 3, None])
def test_from_hidden_states_in_chunks_of_any_size(temperature, chunk_tokens):
    generator = torch.Generator().manual_seed(2)
    hidden, other_hidden = (torch.randn(7, width, generator=generator, dtype=torch.float64) for width in (3, 4))
    hidden.requires_grad_()
    weight, other_weight = (torch.randn(11, width, generator=generator, dtype=torch.float64) for width in (3, 4))
    found = token_divergences(
        hidden,
        lambda states: states @ weight.T,
        other_hidden,
        lambda states: states @ other_weight.T,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
    logits = hidden.detach() @ weight.T / temperature, other_hidden @ other_weight.T / temperature
    pair = [torch.distributions.Categorical(logits=one) for one in logits]
    torch.testing.assert_close(found.full, torch.distributions.kl_divergence(*pair), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.forward, torch.distributions.kl_divergence(*pair[::-1]), rtol=1e-10, atol=1e-12)
    assert found.top1_changed.bool().tolist() == (logits[0].argmax(-1) != logits[1].argmax(-1)).tolist()
    assert not any(value.requires_grad for value in found)
