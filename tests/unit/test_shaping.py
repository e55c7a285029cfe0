"""Reward and advantage shaping by hand, in ROLL's order."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.algorithm.mismatch import sampler_weights
from grpo_core.algorithm.shaping import shape_advantages, shape_rewards
from grpo_core.config import FilterConfig
from grpo_core.training.batch import filter_rows, overlong_penalty

MASK = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


# Two groups of two: means 2 and 6, standard deviations sqrt(2) and 2 sqrt(2); all four: mean 4, variance 26/3.
REWARDS = float64([1.0, 3.0, 4.0, 8.0])


def test_group_normalisation_by_hand():
    shaped = shape_rewards(REWARDS, 2, norm="group")
    assert shaped.tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)] * 2, rel=1e-5)


def test_batch_normalisation_by_hand():
    shaped = shape_rewards(REWARDS, 2, norm="batch")
    assert shaped.tolist() == pytest.approx([value / math.sqrt(26 / 3) for value in (-3, -1, 0, 4)], rel=1e-5)


@pytest.mark.parametrize(
    ("shift", "scale", "expected"),
    [
        (True, False, [-3, -1, 0, 4]),
        (False, True, [value / math.sqrt(26 / 3) for value in (1, 3, 4, 8)]),
        (False, False, [1, 3, 4, 8]),
    ],
)
def test_shift_and_scale_are_the_halves_of_it(shift, scale, expected):
    assert shape_rewards(REWARDS, 2, norm="batch", shift=shift, scale=scale).tolist() == pytest.approx(expected, rel=1e-5)


def test_the_clip_comes_after_the_normalisation():
    assert shape_rewards(REWARDS, 2, norm="batch", scale=False, clip=2.0).tolist() == [-2, -1, 0, 2]
    assert shape_rewards(REWARDS, 2, clip=2.0).tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_an_unscorable_reward_stays_unscorable_and_leaves_the_means(norm):
    shaped = shape_rewards(float64([1.0, math.nan, 3.0, 3.0]), 4, norm=norm, scale=False)
    assert shaped[1].isnan()
    assert shaped[[0, 2, 3]].tolist() == pytest.approx([1 - 7 / 3, 3 - 7 / 3, 3 - 7 / 3])


def test_rewards_without_spread_are_finite():
    for norm in ("group", "batch"):
        assert shape_rewards(float64([2.0, 2.0]), 2, norm=norm).tolist() == [0, 0]
        assert shape_rewards(float64([2.0]), 1, norm=norm).tolist() == [0]


def test_kl_in_the_reward_is_a_return_to_go_by_hand():
    # k1 = 1, 2, 4 in the first row: to go 7, 6, 4; the second row has one token
    shaped = shape_advantages(float64([1.0, -1.0]), MASK, beta=0.5, k1_per_token=float64([[1, 2, 4], [3, 9, 9]]))
    assert shaped.tolist() == [[1 - 3.5, 1 - 3, 1 - 2], [-1 - 1.5, 0, 0]]


def test_whitening_by_hand_weighs_tokens_not_completions():
    # tokens 1, 1, 1, -3: mean 0, Bessel variance 12/3 = 4
    shaped = shape_advantages(float64([1.0, -3.0]), MASK, whiten=True)
    assert shaped.tolist() == [pytest.approx([0.5, 0.5, 0.5]), pytest.approx([-1.5, 0, 0])]


def test_the_advantage_clip_is_the_last_word():
    shaped = shape_advantages(float64([1.0, -3.0]), MASK, whiten=True, clip=1.0)
    assert shaped[1, 0] == -1
    assert shape_advantages(float64([1.0, -3.0]), MASK, clip=2.0).tolist() == [1, -2]


def test_without_shaping_advantages_are_what_they_were():
    advantages = float64([1.0, -3.0])
    assert shape_advantages(advantages, MASK) is advantages


def test_one_token_cannot_be_whitened():
    only = torch.tensor([[True, False]])
    assert shape_advantages(float64([2.0]), only, whiten=True).tolist() == [[2, 0]]


@settings(max_examples=50)
@given(
    st.lists(st.floats(-5, 5), min_size=4, max_size=4).filter(lambda values: max(values) - min(values) > 0.1),
    st.floats(0.5, 3),
    st.floats(-9, 9),
)
def test_standardised_advantages_do_not_see_an_affine_map(values, scale, shift):
    # What makes reward_norm inert there, and the configuration refuse it; eps is what keeps it from being exact.
    rewards = float64(values)
    before = group_relative_advantages(rewards, 4, eps=1e-12)
    torch.testing.assert_close(group_relative_advantages(rewards * scale + shift, 4, eps=1e-12), before, rtol=1e-6, atol=1e-6)


@settings(max_examples=50)
@given(st.integers(2, 9), st.integers(0, 2**31))
def test_no_standardised_advantage_exceeds_its_bound(group_size, seed):
    rewards = torch.randn(group_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).exp()
    bound = (group_size - 1) / math.sqrt(group_size)
    assert float(group_relative_advantages(rewards, group_size).abs().max()) <= bound
    one_hot = torch.nn.functional.one_hot(torch.tensor(0), group_size).double()
    assert float(group_relative_advantages(one_hot, group_size, eps=1e-12).max()) == pytest.approx(bound, rel=1e-9)


def test_the_overlong_penalty_rises_to_1_at_the_limit():
    lengths = torch.tensor([1, 6, 7, 10])
    assert overlong_penalty(lengths, limit=10, buffer=4).tolist() == [0, 0, 0.25, 1]
    assert overlong_penalty(lengths, limit=10, buffer=None).tolist() == [0, 0, 0, 0]


def test_filters_say_what_they_leave_out():
    config = FilterConfig(drop_zero_variance_groups=True, mask_truncated_completions=True)
    truncated = torch.tensor([False, True, False, False])
    kept, figures = filter_rows(config, float64([-0.7, 0.7, 0.0, 0.0]), truncated, 2)
    assert kept.tolist() == [True, False, False, False]
    assert {key: float(mean) for key, mean in figures.items()} == {"filter/truncated_frac": 0.25, "filter/kept_frac": 0.25}


def test_nothing_is_filtered_by_default():
    kept, figures = filter_rows(FilterConfig(), float64([1.0, 1.0]), torch.tensor([True, True]), 2)
    assert kept.all()
    assert figures == {}


OLD_MINUS_SAMPLER = float64([[0.0, math.log(2), math.log(0.5)], [math.log(3), 5.0, 5.0]])


@pytest.mark.parametrize(
    ("level", "treatment", "expected"),
    [
        ("token", "truncate", [[1, 1.5, 0.5], [1.5, 1, 1]]),
        ("token", "mask", [[1, 0, 0.5], [0, 1, 1]]),
        ("sequence", "truncate", [[1, 1, 1], [1.5, 1, 1]]),  # 1 * 2 * 1/2 = 1; 3
        ("sequence", "mask", [[1, 1, 1], [0, 1, 1]]),
    ],
)
def test_sampler_weights_by_hand(level, treatment, expected):
    weights = sampler_weights(OLD_MINUS_SAMPLER, torch.zeros(2, 3), MASK, level=level, treatment=treatment, bound=1.5)
    assert weights.tolist() == [pytest.approx(row) for row in expected]


def test_sampler_weights_carry_no_gradient():
    old = OLD_MINUS_SAMPLER.clone().requires_grad_()
    assert not sampler_weights(old, torch.zeros(2, 3), MASK).requires_grad
