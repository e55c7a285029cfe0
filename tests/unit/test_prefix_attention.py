"""Attention to a shared prompt and to own tokens equals softmax over both, in value and in gradient."""

import pytest
import torch

from grpo_core.policy.fast.grouped import attend_from_completions

P, G, T, S, HEADS, KV_HEADS, SIZE = 2, 3, 4, 5, 6, 2, 8


def states(length=T, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(P, G, length, HEADS, SIZE), *[(P, G, length, KV_HEADS, SIZE)] * 2, *[(P, S, KV_HEADS, SIZE)] * 2]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def hidden_last(number):
    """Of the first prompt, `number` tokens are hidden."""
    bias = torch.zeros(P, 1, 1, S, dtype=torch.float64)
    bias[0, ..., S - number :] = -torch.inf
    return bias


def attended(query, key, value, prompt_key, prompt_value, bias, scale):
    return attend_from_completions(query, (key, value), (prompt_key, prompt_value), prompt_bias=bias, scale=scale)


def plainly(query, key, value, prompt_key, prompt_value, bias, scale):
    """The same, one token at a time."""
    seen = torch.zeros_like(query)
    for p in range(P):
        for g in range(G):
            for t in range(query.shape[2]):
                for h in range(HEADS):
                    k = h * KV_HEADS // HEADS
                    keys = torch.cat([prompt_key[p, :, k], key[p, g, : t + 1, k]])
                    values = torch.cat([prompt_value[p, :, k], value[p, g, : t + 1, k]])
                    scores = scale * keys @ query[p, g, t, h]
                    if bias is not None:
                        scores = scores + torch.cat([bias[p, 0, 0], scores.new_zeros(t + 1)])
                    seen[p, g, t, h] = scores.softmax(dim=0) @ values
    return seen


@pytest.mark.parametrize("hidden", [None, 2])
def test_values_and_gradients_are_those_of_softmax_over_both_parts(hidden):
    ours, theirs = states(), states()
    bias = None if hidden is None else hidden_last(hidden)
    weights = torch.randn(P, G, T, HEADS, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, expected = attended(*ours, bias, 0.3), plainly(*theirs, bias, 0.3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=0, atol=1e-12)
    if hidden is not None:
        assert not ours[3].grad[0, S - hidden :].any()


def test_completions_without_a_token_see_nothing():
    query, *others = states(length=0)
    assert attended(query, *others, None, 0.3).shape == (P, G, 0, HEADS, SIZE)
