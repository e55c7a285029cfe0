"""KL estimators by hand, against the exact KL of enumerable distributions, and by their gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.algorithm.kl import full_kl, k1, k2, k3, per_token_kl

SETTINGS = settings(max_examples=60)
LOGITS = st.lists(st.floats(-4, 4), min_size=5, max_size=5)


def log_probabilities(logits):
    return torch.log_softmax(torch.tensor(logits, dtype=torch.float64), dim=0)


def exact_kl(logp, logq):
    return (logp.exp() * (logp - logq)).sum()


def test_by_hand():
    # r = 2: -log 2; (log 2)^2 / 2; 2 - 1 - log 2. r = 1/2: log 2; (log 2)^2 / 2; 1/2 - 1 + log 2. r = 1: 0
    log_ratio = torch.tensor([math.log(2), -math.log(2), 0.0], dtype=torch.float64)
    half_square = math.log(2) ** 2 / 2
    expected = {
        k1: [-math.log(2), math.log(2), 0.0],
        k2: [half_square, half_square, 0.0],
        k3: [1 - math.log(2), math.log(2) - 0.5, 0.0],
    }
    for estimator, values in expected.items():
        torch.testing.assert_close(estimator(log_ratio), torch.tensor(values, dtype=torch.float64), rtol=0, atol=1e-15)


def test_the_exact_kl_is_that_of_the_policy_to_the_reference():
    # (1/4, 3/4) to (1/2, 1/2): 1/4 log 1/2 + 3/4 log 3/2; the other way round 1/2 log 2 + 1/2 log 2/3
    policy, reference = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64).log()
    assert float(full_kl(policy, reference)) == pytest.approx(0.75 * math.log(3) - math.log(2), abs=1e-14)
    assert float(full_kl(reference, policy)) == pytest.approx(math.log(2) - math.log(3) / 2, abs=1e-14)


@pytest.mark.parametrize(("name", "estimator"), [("k1", k1), ("k2", k2), ("k3", k3)])
def test_estimators_go_by_name(name, estimator):
    log_ratio = torch.linspace(-3, 3, 7)
    assert torch.equal(per_token_kl(log_ratio, name), estimator(log_ratio))


def test_k3_of_nearly_equal_policies_keeps_its_precision_in_fp32():
    # k3 = x^2 / 2 + x^3 / 6 + ...; at x = 1e-4 that is 5.000167e-9, which exp(x) - 1 - x in fp32 misses by more than its size
    assert float(k3(torch.tensor(1e-4, dtype=torch.float64))) == pytest.approx(5.000166671e-9, rel=1e-7)
    small = torch.tensor([1e-3, -1e-3])
    torch.testing.assert_close(k3(small).double(), k3(small.double()), rtol=1e-3, atol=1e-10)


@SETTINGS
@given(log_ratio=st.floats(-30, 30))
def test_k3_is_never_negative(log_ratio):
    assert float(k3(torch.tensor(log_ratio, dtype=torch.float64))) >= 0
    assert float(k3(torch.tensor(log_ratio, dtype=torch.float32))) >= 0


@SETTINGS
@given(policy=LOGITS, reference=LOGITS)
def test_k1_and_k3_are_unbiased(policy, reference):
    # The expectation is the sum over all five outcomes, so there is no sampling error.
    logp, logq = log_probabilities(policy), log_probabilities(reference)
    for estimator in (k1, k3):
        expectation = (logp.exp() * estimator(logq - logp)).sum()
        torch.testing.assert_close(expectation, exact_kl(logp, logq), rtol=1e-10, atol=1e-12)


def test_k2_is_biased():
    logp, logq = log_probabilities([2.0, 0.0, 0.0, 0.0, 0.0]), log_probabilities([0.0, 0.0, 0.0, 0.0, 2.0])
    bias = (logp.exp() * k2(logq - logp)).sum() - exact_kl(logp, logq)
    assert abs(float(bias)) > 0.05


def estimator_gradient(estimator, policy, reference):
    """Gradient of the sampled loss on-policy: outcomes weighted by frozen probabilities, the estimator differentiated."""
    logits = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    logp, logq = torch.log_softmax(logits, dim=0), log_probabilities(reference)
    (logp.detach().exp() * estimator(logq - logp)).sum().backward()
    return logits.grad


def kl_gradient(policy, reference, reverse=False):
    logits = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    logp, logq = torch.log_softmax(logits, dim=0), log_probabilities(reference)
    (exact_kl(logq, logp) if reverse else exact_kl(logp, logq)).backward()
    return logits.grad


@SETTINGS
@given(policy=LOGITS, reference=LOGITS)
def test_gradient_of_k2_is_the_gradient_of_the_kl(policy, reference):
    torch.testing.assert_close(estimator_gradient(k2, policy, reference), kl_gradient(policy, reference), rtol=1e-9, atol=1e-12)


@SETTINGS
@given(policy=LOGITS, reference=LOGITS)
def test_gradient_of_plain_k3_is_that_of_the_kl_the_other_way_round(policy, reference):
    torch.testing.assert_close(
        estimator_gradient(k3, policy, reference), kl_gradient(policy, reference, reverse=True), rtol=1e-9, atol=1e-12
    )


@SETTINGS
@given(policy=LOGITS, reference=LOGITS)
def test_gradient_of_plain_k1_is_0(policy, reference):
    gradient = estimator_gradient(k1, policy, reference)
    torch.testing.assert_close(gradient, torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)


def test_gradient_of_plain_k3_is_not_the_gradient_of_the_kl():
    policy, reference = [2.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 2.0]
    difference = estimator_gradient(k3, policy, reference) - kl_gradient(policy, reference)
    assert float(difference.abs().max()) > 0.1


def test_k3_times_the_live_ratio_has_the_gradient_of_the_kl():
    # What the plain k3 lacks: differentiating through the probabilities of the outcomes as well.
    policy, reference = [2.0, 0.0, -1.0, 0.0, 0.5], [0.0, 0.3, 0.0, 0.0, 2.0]

    def weighted(log_ratio):
        logp = log_probabilities(reference) - log_ratio
        return torch.exp(logp - logp.detach()) * k3(log_ratio)

    torch.testing.assert_close(
        estimator_gradient(weighted, policy, reference), kl_gradient(policy, reference), rtol=1e-10, atol=1e-13
    )
