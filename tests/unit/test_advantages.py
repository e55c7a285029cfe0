"""Group-relative advantages against hand-computed groups and properties that hold for any rewards."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.algorithm.advantages import group_relative_advantages, group_std

SETTINGS = settings(max_examples=60)
NAN = math.nan


def advantages(rewards, group_size, **options):
    return group_relative_advantages(torch.tensor(rewards, dtype=torch.float64), group_size, **options)


def assert_close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance)


def groups_of(size):
    """Rewards in eighths: sums of them are exact, so equal rewards stay equal under a shift."""
    return st.lists(st.integers(-80, 80).map(lambda eighths: eighths / 8), min_size=size, max_size=4 * size).map(
        lambda rewards: rewards[: len(rewards) // size * size]
    )


def test_group_mean_and_group_std_are_deepseekmaths():
    # mean 3; squared deviations 4, 0, 4 -> Bessel variance 8 / 2 = 4, std 2; (1 - 3) / (2 + 0.5) = -0.8
    assert_close(advantages([1.0, 3.0, 5.0], 3, eps=0.5), [-0.8, 0.0, 0.8])


def test_standard_deviation_is_bessel_corrected():
    # 1, 0, 0, 1: variance 4 * 0.25 / 3 = 1/3, not 1/4
    assert_close(group_std(torch.tensor([1.0, 0.0, 0.0, 1.0]), 4), [1 / math.sqrt(3)])
    assert_close(advantages([1.0, 0.0, 0.0, 1.0], 4), [s * 0.5 / (1 / math.sqrt(3) + 1e-4) for s in (1, -1, -1, 1)])


def test_default_epsilon_is_1e_minus_4():
    # two rewards 2 apart: deviations -1, 1, variance 2 / 1, std sqrt(2)
    assert_close(advantages([0.0, 2.0], 2), [-1 / (math.sqrt(2) + 1e-4), 1 / (math.sqrt(2) + 1e-4)])


def test_leave_one_out_compares_with_the_mean_of_the_others():
    # 4 - (1 + 1) / 2 = 3; 1 - (4 + 1) / 2 = -1.5
    assert_close(advantages([4.0, 1.0, 1.0], 3, baseline="leave_one_out", scale="none"), [3.0, -1.5, -1.5])


def test_leave_one_out_is_the_group_mean_baseline_times_g_over_g_minus_1():
    rewards = [0.5, 2.0, -1.0, 7.0]
    plain = advantages(rewards, 4, scale="none")
    torch.testing.assert_close(
        advantages(rewards, 4, baseline="leave_one_out", scale="none"), plain * 4 / 3, rtol=1e-14, atol=0
    )


def test_batch_std_divides_by_the_spread_over_all_groups():
    # 1, 3 | 0, 8: mean 3, squares 4 + 0 + 9 + 25 = 38, Bessel std sqrt(38 / 3); centred in each group: -1, 1, -4, 4
    scale = math.sqrt(38 / 3) + 0.25
    assert_close(
        advantages([1.0, 3.0, 0.0, 8.0], 2, scale="batch_std", eps=0.25), [-1 / scale, 1 / scale, -4 / scale, 4 / scale]
    )


def test_no_scale_leaves_the_difference():
    assert_close(advantages([1.0, 3.0, 0.0, 8.0], 2, scale="none"), [-1.0, 1.0, -4.0, 4.0])


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("group_mean", [-2.0, 0.0, 0.0, 2.0]),  # 1, 3, 5 have the mean 3
        ("leave_one_out", [-3.0, 0.0, 0.0, 3.0]),  # 1 - (3 + 5) / 2, 3 - (1 + 5) / 2, 5 - (1 + 3) / 2
    ],
)
def test_an_unscorable_completion_gets_0_and_leaves_the_baseline(baseline, expected):
    assert_close(advantages([1.0, NAN, 3.0, 5.0], 4, baseline=baseline, scale="none"), expected)


def test_an_unscorable_completion_leaves_both_standard_deviations():
    # group 1, 3, 5: std 2; batch 1, 3, 5, 0, 2: mean 2.2, squares 1.44 + 0.64 + 7.84 + 4.84 + 0.04 = 14.8, std sqrt(3.7)
    rewards = [1.0, NAN, 3.0, 5.0, 0.0, 2.0, NAN, NAN]
    assert_close(advantages(rewards, 4, eps=0.5)[:4], [-0.8, 0.0, 0.0, 0.8])
    scale = math.sqrt(3.7) + 0.5
    expected = [-2 / scale, 0.0, 0.0, 2 / scale, -1 / scale, 1 / scale, 0.0, 0.0]
    assert_close(advantages(rewards, 4, scale="batch_std", eps=0.5), expected)


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
@pytest.mark.parametrize(
    "group", [[0.1] * 3, [0.3, NAN, 0.3], [NAN, 7.0, NAN], [NAN] * 3], ids=["equal", "equal but one", "one scorable", "none"]
)
def test_a_group_without_two_different_rewards_is_exactly_0_beside_one_that_has_them(group, scale, baseline):
    result = advantages([*group, 0.0, 1.0, 2.0], 3, baseline=baseline, scale=scale)
    assert result[:3].tolist() == [0.0, 0.0, 0.0]
    assert result[5] > 0


@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
def test_a_group_of_one_is_exactly_0(scale):
    assert advantages([0.1, 5.0, -3.0], 1, scale=scale).tolist() == [0.0, 0.0, 0.0]


def test_group_std_is_0_where_fewer_than_two_rewards_count():
    assert_close(group_std(torch.tensor([NAN, 7.0, 1.0, 3.0, 2.0, 2.0]), 2), [0.0, math.sqrt(2), 0.0])


def test_the_dtype_of_the_rewards_is_kept():
    assert advantages([1.0, 0.0], 2).dtype == torch.float64
    assert group_relative_advantages(torch.tensor([1.0, 0.0]), 2).dtype == torch.float32


def test_rewards_that_do_not_fill_the_groups_are_refused():
    with pytest.raises(ValueError, match="5 rewards do not fill groups of 2"):
        advantages([1.0, 2.0, 3.0, 4.0, 5.0], 2)


@SETTINGS
@given(rewards=groups_of(4), baseline=st.sampled_from(["group_mean", "leave_one_out"]))
def test_advantages_of_a_group_sum_to_0(rewards, baseline):
    for scale in ("group_std", "batch_std", "none"):
        sums = advantages(rewards, 4, baseline=baseline, scale=scale).view(-1, 4).sum(dim=1)
        assert_close(sums, [0.0] * len(sums), 1e-9)


@SETTINGS
@given(rewards=groups_of(3), shift=st.integers(-1000, 1000), baseline=st.sampled_from(["group_mean", "leave_one_out"]))
def test_a_constant_added_to_every_reward_changes_nothing(rewards, shift, baseline):
    for scale in ("group_std", "batch_std", "none"):
        before = advantages(rewards, 3, baseline=baseline, scale=scale)
        after = advantages([reward + shift for reward in rewards], 3, baseline=baseline, scale=scale)
        torch.testing.assert_close(after, before, rtol=0, atol=1e-7)


@SETTINGS
@given(rewards=groups_of(3), data=st.data())
def test_the_order_of_groups_and_inside_groups_is_irrelevant(rewards, data):
    groups = torch.tensor(rewards, dtype=torch.float64).view(-1, 3)
    outer = torch.tensor(data.draw(st.permutations(range(len(groups)))), dtype=torch.long)
    inner = torch.tensor(data.draw(st.permutations(range(3))))
    for scale in ("group_std", "batch_std", "none"):
        before = group_relative_advantages(groups.view(-1), 3, scale=scale).view(-1, 3)
        after = group_relative_advantages(groups[outer][:, inner].reshape(-1), 3, scale=scale).view(-1, 3)
        torch.testing.assert_close(after, before[outer][:, inner], rtol=0, atol=1e-10)


@SETTINGS
@given(rewards=groups_of(3), factor=st.sampled_from([0.25, 2.0, 16.0]))
def test_without_epsilon_a_scale_of_the_rewards_cancels_in_the_standard_deviation(rewards, factor):
    before = advantages(rewards, 3, eps=1e-12)
    torch.testing.assert_close(advantages([reward * factor for reward in rewards], 3, eps=1e-12), before, rtol=0, atol=1e-9)
