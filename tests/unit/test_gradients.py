"""The expected gradient of every KL option, exactly: a policy whose sequences can all be listed, summed in float64.

The policy has one table of logits for each prefix over {a, b, end}; completions have 1 to 3 tokens. For a loss l(o) the
expected gradient under samples from a policy q is sum_o q(o) grad l(o), with q held fixed. It is compared with

    T(q) = sum_t E_{prefix ~ q} grad KL_t(pi || ref)     prefixes held fixed, weighted as the aggregation weights their tokens
    S    = grad KL(pi || ref)                            of whole completions
"""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from grpo_core.algorithm.kl import full_kl, k1, k2, k3, kl_term, kl_to_go
from grpo_core.algorithm.loss import Denominators, grpo_loss
from grpo_core.algorithm.shaping import shape_advantages
from tests.support.kl_gradients import TABLE, KlGradient

LENGTH, VOCABULARY, END = 3, 3, 2
SUM_AGGREGATIONS = ("seq-mean-token-sum", "seq-mean-token-sum-norm")


def completions() -> list[tuple[int, ...]]:
    """All completions: they stop at the end token, or at LENGTH."""
    whole = {
        sequence[: sequence.index(END) + 1] if END in sequence else sequence for sequence in product(range(3), repeat=LENGTH)
    }
    return sorted(whole)


COMPLETIONS = completions()
PREFIXES = sorted({completion[:t] for completion in COMPLETIONS for t in range(len(completion))})
MASK = torch.tensor([[t < len(completion) for t in range(LENGTH)] for completion in COMPLETIONS])


def table(seed: int) -> Tensor:
    """Logits of a policy: [prefixes, VOCABULARY]."""
    return torch.randn(len(PREFIXES), VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


POLICY, REFERENCE, OLD = table(1), table(2), table(1) + 0.5 * table(3)
CENTRES = torch.tensor(
    [[PREFIXES.index(completion[:t]) if t < len(completion) else 0 for t in range(LENGTH)] for completion in COMPLETIONS]
)
TOKENS = torch.tensor([[completion[t] if t < len(completion) else 0 for t in range(LENGTH)] for completion in COMPLETIONS])


def token_logps(logits: Tensor) -> Tensor:
    """[completions, LENGTH] log-probabilities of their tokens, 0 outside the mask."""
    values = logits.log_softmax(-1)[CENTRES, TOKENS]
    return torch.where(MASK, values, 0.0)


def probabilities(logits: Tensor) -> Tensor:
    """[completions] probabilities, no gradient."""
    return token_logps(logits).sum(1).exp().detach()


def per_prefix_kl(logits: Tensor, reverse: bool = False) -> Tensor:
    """[prefixes] exact KL(pi || ref), or KL(ref || pi)."""
    pair = (logits.log_softmax(-1), REFERENCE.log_softmax(-1))
    return full_kl(*(pair[::-1] if reverse else pair))


def frozen_prefix_gradient(sampler: Tensor, reverse: bool = False, over_length: bool = False) -> Tensor:
    """T(sampler), of sums over tokens or under 1/|o|."""
    logits = POLICY.clone().requires_grad_()
    at_tokens = torch.where(MASK, per_prefix_kl(logits, reverse)[CENTRES], 0.0)
    lengths = MASK.sum(1) if over_length else torch.ones(len(COMPLETIONS))
    (probabilities(sampler) @ (at_tokens.sum(1) / lengths)).backward()
    return logits.grad


def sequence_gradient() -> Tensor:
    """S."""
    logits = POLICY.clone().requires_grad_()
    logps = token_logps(logits).sum(1)
    (logps.exp() * (logps - token_logps(REFERENCE).sum(1))).sum().backward()
    return logits.grad


def expected_gradient(
    sampler: Tensor,
    *,
    estimator: str = "k3",
    correction: str = "none",
    aggregation: str = "seq-mean-token-sum",
    advantages: Tensor | None = None,
    beta: float = 1.0,
    level: str = "token",
) -> Tensor:
    """Expected gradient of `grpo_loss` of one completion at a time, drawn from `sampler`."""
    logits = POLICY.clone().requires_grad_()
    logps, old, reference = token_logps(logits), token_logps(sampler), token_logps(REFERENCE)
    on_policy = torch.equal(sampler, POLICY)
    full = torch.where(MASK, per_prefix_kl(logits)[CENTRES], 0.0) if estimator == "full" else None
    given = torch.zeros(len(COMPLETIONS), dtype=torch.float64) if advantages is None else advantages
    total = torch.zeros((), dtype=torch.float64)
    for row, chance in enumerate(probabilities(sampler)):
        one = slice(row, row + 1)
        terms = grpo_loss(
            per_token_logps=logps[one],
            old_per_token_logps=logps[one].detach() if on_policy else old[one],
            ref_per_token_logps=reference[one],
            advantages=given[one],
            loss_mask=MASK[one],
            denominators=Denominators.of(MASK[one], 1),
            beta=beta,
            kl_estimator=estimator,
            kl_correction=correction,
            full_kl=None if full is None else full[one],
            clip_eps=None,
            aggregation=aggregation,
            ratio=level,
        )
        total = total + chance * terms.total
    total.backward()
    return logits.grad


def same(left: Tensor, right: Tensor) -> None:
    """Compare two gradients."""
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def differ(left: Tensor, right: Tensor) -> float:
    """Return how far two gradients are apart, relative to the second."""
    return float((left - right).norm() / right.norm())


def test_the_toy_is_a_distribution_over_completions_of_different_lengths() -> None:
    assert float(probabilities(POLICY).sum()) == pytest.approx(1, abs=1e-14)
    assert sorted({len(completion) for completion in COMPLETIONS}) == [1, 2, 3]
    assert differ(frozen_prefix_gradient(POLICY), sequence_gradient()) > 0.05  # otherwise T and S could not be told apart


def gradient_of(row: KlGradient, sampler: Tensor, aggregation: str = "seq-mean-token-sum") -> Tensor:
    """Return the expected gradient of an option of the table, alone in the objective, as the engine computes it."""
    if row.placement == "reward":
        return expected_gradient(sampler, beta=0.0, advantages=kl_as_advantage(sampler), aggregation=aggregation)
    return expected_gradient(sampler, estimator=row.estimator, correction=row.correction, aggregation=aggregation)


def claimed(gradient: str, sampler: Tensor) -> Tensor:
    """Return what the table calls a gradient."""
    if gradient == "S":
        return sequence_gradient()
    if gradient == "0":
        return torch.zeros_like(POLICY)
    return frozen_prefix_gradient(sampler, reverse=gradient == "reverse T")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.estimator} in the {row.placement}, {row.correction}")
def test_on_policy_each_option_has_the_gradient_of_the_table(row: KlGradient) -> None:
    same(gradient_of(row, POLICY), claimed(row.on_policy, POLICY))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.estimator} in the {row.placement}, {row.correction}")
def test_under_one_over_length_nothing_but_the_exact_sum_leaves_the_length_alone(row: KlGradient) -> None:
    found = gradient_of(row, POLICY, "seq-mean-token-mean")
    if row.over_length == "T":
        same(found, frozen_prefix_gradient(POLICY, over_length=True))
    elif row.over_length == "length alone":
        same(found, gradient_of_length())
    else:
        reverse = frozen_prefix_gradient(POLICY, reverse=True, over_length=True)
        wanted = (
            frozen_prefix_gradient(POLICY, over_length=True),
            frozen_prefix_gradient(POLICY),
            sequence_gradient(),
            reverse,
        )
        assert row.over_length == "and length"
        assert min(differ(found, right) for right in wanted) > 0.05


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.estimator} in the {row.placement}, {row.correction}")
def test_under_stale_samples_each_option_has_the_gradient_of_the_table(row: KlGradient) -> None:
    found = gradient_of(row, OLD)
    if row.stale == "biased":
        assert min(differ(found, right) for right in (frozen_prefix_gradient(OLD), sequence_gradient())) > 0.05
    else:
        assert row.stale == "T of the old prefixes"
        same(found, frozen_prefix_gradient(OLD))
        assert differ(found, frozen_prefix_gradient(POLICY)) > 0.05


def test_the_table_has_every_option_that_can_be_configured() -> None:
    loss = {(row.estimator, row.correction) for row in TABLE if row.placement == "loss"}
    sampled = {(estimator, correction) for estimator in ("k1", "k2", "k3") for correction in ("none", "importance")}
    assert loss == sampled | {("full", "none")}
    assert [(row.estimator, row.correction) for row in TABLE if row.placement == "reward"] == [("k1", "none")]


def noise_of(estimator: str, correction: str, sharpness: float) -> float:
    """Return the root mean square distance of one completion's gradient from its mean, relative to T, on-policy under sums."""
    logits = (sharpness * POLICY).requires_grad_()
    logps = token_logps(logits)
    full = torch.where(MASK, per_prefix_kl(logits)[CENTRES], 0.0)
    per_token = kl_term(
        token_logps(REFERENCE) - logps, logps - logps.detach(), estimator, correction, full if estimator == "full" else None
    )
    losses = torch.where(MASK, per_token, 0.0).sum(1)
    gradients = torch.stack([torch.autograd.grad(loss, logits, retain_graph=True)[0].flatten() for loss in losses])
    chances = probabilities(logits.detach())
    right = torch.autograd.grad(chances @ torch.where(MASK, full, 0.0).sum(1), logits)[0]
    return float((chances @ (gradients - chances @ gradients).square().sum(1)).sqrt() / right.norm())


NOISE = (
    ("k3", "none", 3.06, 71.5),
    ("k3", "importance", 1.45, 1.13),
    ("k1", "importance", 2.48, 1.72),
    ("k2", "none", 1.45, 1.13),
    ("full", "none", 0.68, 0.43),
)
"""As docs/algorithm.md has it (tests/contracts/test_docs.py)."""


@pytest.mark.parametrize(("estimator", "correction", "plain", "sharpened"), NOISE)
def test_the_noise_of_a_gradient_is_that_of_the_documentation(
    estimator: str, correction: str, plain: float, sharpened: float
) -> None:
    assert noise_of(estimator, correction, 1.0) == pytest.approx(plain, abs=0.005)
    assert noise_of(estimator, correction, 3.0) == pytest.approx(sharpened, rel=0.005)


def test_the_other_divergence_is_another_one() -> None:
    assert differ(frozen_prefix_gradient(POLICY, reverse=True), frozen_prefix_gradient(POLICY)) > 0.1


@pytest.mark.parametrize("aggregation", SUM_AGGREGATIONS)
def test_plain_k1_does_nothing_under_sums(aggregation: str) -> None:
    gradient = expected_gradient(POLICY, estimator="k1", aggregation=aggregation)
    same(gradient, torch.zeros_like(gradient))


def gradient_of_length() -> Tensor:
    """grad E[1/|o|]: what plain k1 comes to under 1/|o|, whatever the reference is.

    d/d theta of sum_o pi(o) (1/|o|) sum_t log pi_t, o fixed, is E[(1/|o|) grad log pi(o)] = grad E[1/|o|]; a loss with it is
    minimised by longer completions.
    """
    logits = POLICY.clone().requires_grad_()
    (token_logps(logits).sum(1).exp() / MASK.sum(1)).sum().backward()
    assert float(logits.grad.norm()) > 0.01
    return logits.grad


def test_live_ratio_times_k2_is_wrong_even_on_policy() -> None:
    logits = POLICY.clone().requires_grad_()
    logps = token_logps(logits)
    live = (logps - logps.detach()).exp() * k2(token_logps(REFERENCE) - logps)
    (probabilities(POLICY) @ torch.where(MASK, live, 0.0).sum(1)).backward()
    assert differ(logits.grad, frozen_prefix_gradient(POLICY)) > 0.1


def kl_as_advantage(sampler: Tensor) -> Tensor:
    """[completions, LENGTH] advantages that hold nothing but the KL, beta 1."""
    per_token = k1(token_logps(REFERENCE) - token_logps(sampler))
    return shape_advantages(torch.zeros(len(COMPLETIONS), dtype=torch.float64), MASK, beta=1.0, k1_per_token=per_token)


def test_k1_in_the_reward_needs_the_ratio_of_tokens() -> None:
    # The sequence's ratio spreads the mean of a completion's advantages over its tokens; the configuration refuses the pair.
    found = expected_gradient(POLICY, beta=0.0, advantages=kl_as_advantage(POLICY), level="sequence")
    assert differ(found, sequence_gradient()) > 0.1


def test_the_surrogate_is_the_policy_gradient() -> None:
    # With a completion's reward as its advantage and sums over tokens: -grad E[r].
    rewards = torch.linspace(-1, 2, len(COMPLETIONS), dtype=torch.float64).sin()
    logits = POLICY.clone().requires_grad_()
    (-(token_logps(logits).sum(1).exp() * rewards).sum()).backward()
    same(expected_gradient(POLICY, beta=0.0, advantages=rewards), logits.grad)


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", *SUM_AGGREGATIONS])
def test_on_policy_the_ratio_of_a_sequence_has_the_gradient_of_those_of_its_tokens(aggregation: str) -> None:
    rewards = torch.linspace(-1, 2, len(COMPLETIONS), dtype=torch.float64).cos()
    gradients = [
        expected_gradient(POLICY, beta=0.0, advantages=rewards, level=level, aggregation=aggregation)
        for level in ("token", "sequence")
    ]
    same(*gradients)


@pytest.mark.parametrize("estimator", [k1, k3])
def test_k1_and_k3_are_unbiased_for_the_kl_of_completions(estimator: Callable[[Tensor], Tensor]) -> None:
    values = torch.where(MASK, estimator(token_logps(REFERENCE) - token_logps(POLICY)), 0.0)
    logps = token_logps(POLICY).sum(1)
    exact = float((logps.exp() * (logps - token_logps(REFERENCE).sum(1))).sum())
    # Summed over tokens, both have the completion's KL as their mean; k3 token by token through its prefixes.
    assert float(probabilities(POLICY) @ values.sum(1)) == pytest.approx(exact, rel=1e-12)


def test_k3_is_never_negative_and_k1_is() -> None:
    ref_log_ratio = (token_logps(REFERENCE) - token_logps(POLICY))[MASK]
    assert float(k3(ref_log_ratio).min()) >= 0
    assert float(k1(ref_log_ratio).min()) < 0


def test_kl_to_go_starts_with_the_whole_completion_and_ends_with_its_last_token() -> None:
    per_token = k1(token_logps(REFERENCE) - token_logps(POLICY))
    to_go = kl_to_go(per_token, MASK)
    torch.testing.assert_close(to_go[:, 0], torch.where(MASK, per_token, 0.0).sum(1))
    last = MASK.sum(1) - 1
    rows = torch.arange(len(COMPLETIONS))
    torch.testing.assert_close(to_go[rows, last], per_token[rows, last])
