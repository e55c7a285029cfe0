"""The reference policy: fixed, copied, or averaged, with the initial policy kept beside it."""

import math

import pytest
import torch

from grpo_core.policy.reference import Reference
from grpo_core.training.ending import is_every
from tests.policies import policy_of


@pytest.fixture
def policy(tiny_model):
    return policy_of(tiny_model)


def move(model, amount):
    """Add `amount` to every weight."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(amount)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_weights(model, expected, tolerance=0.0):
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=tolerance)


def test_the_distance_is_the_euclidean_norm_over_all_weights(policy):
    reference = Reference(policy)
    assert reference.distance(policy) == 0.0
    with torch.no_grad():
        first, second, *_ = policy.parameters()
        first[0, 0] += 3.0
        second[1, 2] += 4.0
    # sqrt(9 + 16); fp32 weights near 0.02 round the sums by about 1e-7
    assert reference.distance(policy) == pytest.approx(5.0, abs=1e-6)


def test_a_hard_copy_is_the_policy_bit_for_bit(policy):
    reference = Reference(policy)
    move(policy, 0.1)
    reference.sync(policy, alpha=1.0, step=7)
    copied = weights(policy)
    assert_weights(reference.current, copied)
    assert reference.distance(policy) == 0.0
    assert (reference.sync_count, reference.last_sync_step) == (1, 7)
    move(policy, 1.0)
    assert_weights(reference.current, copied)


def test_a_moving_average_takes_alpha_of_the_policy(policy):
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(8.0)
    reference = Reference(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(16.0)
    reference.sync(policy, alpha=0.25, step=1)
    # 0.25 * 16 + 0.75 * 8 = 10, then 0.25 * 16 + 0.75 * 10 = 11.5; both exact in binary
    assert_weights(reference.current, [torch.full_like(weight, 10.0) for weight in weights(policy)])
    reference.sync(policy, alpha=0.25, step=2)
    assert_weights(reference.current, [torch.full_like(weight, 11.5) for weight in weights(policy)])
    assert_weights(policy, [torch.full_like(weight, 16.0) for weight in weights(policy)])
    count = sum(weight.numel() for weight in weights(policy))
    assert reference.distance(policy) == pytest.approx(4.5 * math.sqrt(count), rel=1e-12)
    assert (reference.sync_count, reference.last_sync_step) == (2, 2)


def test_the_initial_policy_is_kept_at_the_first_sync_and_never_changes(policy):
    initial = weights(policy)
    reference = Reference(policy)
    for step in (1, 2):
        move(policy, 0.1)
        reference.sync(policy, alpha=1.0, step=step)
        assert_weights(reference.initial, initial)


def test_copies_carry_no_gradient_and_no_dropout(policy):
    policy.model.train()
    reference = Reference(policy)
    reference.sync(policy, alpha=0.5, step=1)
    for copied in (reference.current, reference.initial, policy.frozen_copy()):
        assert not copied.model.training
        assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert all(parameter.requires_grad for parameter in policy.parameters())


def test_a_sync_is_due_after_every_so_many_steps():
    assert [step for step in range(1, 10) if is_every(3, step)] == [3, 6, 9]
    assert [step for step in range(1, 4) if is_every(1, step)] == [1, 2, 3]
    assert not any(is_every(None, step) for step in range(1, 10))
