"""What adapters add, and averages of it, against full matrices, a hand-computed case and an independent decomposition."""

import math

import pytest
import torch

from grpo_core.policy.lora.delta import Full, LowRank, average, compressed, squared_distance


def low_rank(seed, out=24, into=20, rank=3, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((rank, into), (out, rank)))
    return LowRank(a=a, b=b, scale=scale)


def test_an_average_of_two_adapters_by_hand():
    # s B A = 2 [1; 0] [1 2] = [[2, 4], [0, 0]]; the reference is [0; 1] [3 0] = [[0, 0], [3, 0]]
    policy = LowRank(a=torch.tensor([[1.0, 2.0]]), b=torch.tensor([[1.0], [0.0]]), scale=2.0)
    reference = LowRank(a=torch.tensor([[3.0, 0.0]]), b=torch.tensor([[0.0], [1.0]]))
    found = average(reference, policy, 0.25, most_rank=8)
    assert found.dropped == 0.0
    assert found.delta.dense().tolist() == [[0.5, 1.0], [2.25, 0.0]]


def test_averages_are_exact_while_their_rank_is_below_the_bound():
    reference, matrix = low_rank(0), low_rank(0).dense()
    for seed in range(1, 4):
        found = average(reference, low_rank(seed), 0.3, most_rank=64)
        reference, matrix = found.delta, 0.3 * low_rank(seed).dense() + 0.7 * matrix
        assert found.dropped == 0.0
        torch.testing.assert_close(reference.dense(), matrix, rtol=0, atol=1e-13)


def test_an_adapter_that_adds_nothing_takes_no_rank():
    nothing = LowRank(a=torch.ones(3, 20, dtype=torch.float64), b=torch.zeros(24, 3, dtype=torch.float64))
    found = average(nothing, low_rank(1), 0.5, most_rank=64).delta
    assert isinstance(found, LowRank)
    assert len(found.a) == 3
    torch.testing.assert_close(found.dense(), 0.5 * low_rank(1).dense())
    both = average(nothing, nothing, 0.5, most_rank=64).delta
    assert not both.dense().any()


@pytest.mark.parametrize("rank", [1, 4, 7])
def test_what_is_dropped_is_what_a_decomposition_of_the_matrix_says(rank):
    terms = [low_rank(seed) for seed in range(3)]
    exact = LowRank(a=torch.cat([term.a for term in terms]), b=torch.cat([term.b for term in terms], dim=1), scale=2.0)
    found = compressed(exact, rank)
    assert isinstance(found.delta, LowRank)
    assert found.delta.a.shape == (rank, 20)
    singular = torch.linalg.svdvals(exact.dense())
    assert found.dropped == pytest.approx(math.sqrt(float(singular[rank:].square().sum())), rel=1e-12)
    assert math.sqrt(squared_distance(found.delta, exact)) == pytest.approx(found.dropped, rel=1e-10)


def test_beyond_the_bound_the_smallest_values_are_dropped_and_the_error_is_said():
    reference = LowRank(a=torch.cat([low_rank(0).a, low_rank(1).a]), b=torch.cat([low_rank(0).b, low_rank(1).b], dim=1))
    exact = 0.25 * low_rank(2).dense() + 0.75 * reference.dense()
    found = average(reference, low_rank(2), 0.25, most_rank=6)
    assert isinstance(found.delta, LowRank)
    assert len(found.delta.a) == 6
    assert found.dropped > 0
    assert float(torch.linalg.norm(found.delta.dense() - exact)) == pytest.approx(found.dropped, rel=1e-10)


def test_factors_as_large_as_their_product_become_a_matrix():
    # (20 + 24) r >= 20 x 24 from r = 11 on
    reference, matrix = low_rank(0), low_rank(0).dense()
    kinds = []
    for seed in range(1, 5):
        found = average(reference, low_rank(seed), 0.3, most_rank=100)
        reference, matrix = found.delta, 0.3 * low_rank(seed).dense() + 0.7 * matrix
        kinds.append((type(found.delta), found.dropped))
        torch.testing.assert_close(reference.dense(), matrix, rtol=0, atol=1e-13)
    assert kinds == [(LowRank, 0.0), (LowRank, 0.0), (Full, 0.0), (Full, 0.0)]


def test_the_distance_of_large_matrices_is_not_lost_in_single_precision():
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(*shape, generator=generator) for shape in ((4, 1536), (4096, 4)))
    nothing = LowRank(a=torch.zeros_like(a), b=b)
    exact = float((b.double() @ a.double()).square().sum())
    assert squared_distance(LowRank(a=a, b=b), nothing) == pytest.approx(exact, rel=1e-5)
