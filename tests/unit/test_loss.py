"""The GRPO loss by hand: surrogate, clips, aggregations, and what must not change it."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_core.algorithm.kl import k1, k2, k3
from grpo_core.algorithm.loss import Denominators, clipped_surrogate, grpo_loss, token_weights

SETTINGS = settings(max_examples=40)
AGGREGATIONS = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
# Ragged, with a row that no token of the loss is in: n = 3, 1, 0; S = 2, N = 4.
RAGGED = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
L_MAX = 5
RATIOS = [0.5, 1.0, 1.25, 1.5]


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def surrogate(advantage, clip_eps, clip_eps_high, dual_clip=None):
    """Return the per-token losses of RATIOS and their derivatives with respect to the log ratio."""
    log_ratio = float64([RATIOS]).log().requires_grad_()
    losses = clipped_surrogate(log_ratio, float64([advantage]), clip_eps, clip_eps_high, dual_clip)
    losses.sum().backward()
    return losses[0].tolist(), log_ratio.grad[0].tolist()


def loss_of(logps, mask, aggregation="seq-mean-token-mean", denominators=None, beta=0.1, **options):
    """Loss of given [B, T] logps against old and reference ones that differ from them by fixed amounts."""
    rows, width = logps.shape
    shift = torch.linspace(-0.6, 0.7, rows * width, dtype=logps.dtype).view(rows, width)
    defaults = {
        "old_per_token_logps": (logps - shift).detach(),
        "ref_per_token_logps": (logps + shift.flip(1)).detach(),
        "advantages": torch.linspace(-1.0, 1.5, rows, dtype=logps.dtype),
    }
    return grpo_loss(
        per_token_logps=logps,
        loss_mask=mask,
        denominators=denominators or Denominators.of(mask, L_MAX),
        beta=beta,
        aggregation=aggregation,
        **(defaults | options),
    )


def test_positive_advantage_is_held_by_the_upper_clip():
    # gain 2 rho = 1, 2, 2.5, 3; clipped to [0.8, 1.2]: 1.6, 2, 2.4, 2.4; the smaller: 1, 2, 2.4, 2.4
    losses, gradients = surrogate(2.0, 0.2, None)
    assert losses == pytest.approx([-1.0, -2.0, -2.4, -2.4], abs=1e-12)
    # d rho / d log rho = rho where the unclipped gain is taken, else 0
    assert gradients == pytest.approx([-1.0, -2.0, 0.0, 0.0], abs=1e-12)


def test_negative_advantage_is_held_by_the_lower_clip():
    # gain -2 rho = -1, -2, -2.5, -3; clipped: -1.6, -2, -2.4, -2.4; the smaller: -1.6, -2, -2.5, -3
    losses, gradients = surrogate(-2.0, 0.2, None)
    assert losses == pytest.approx([1.6, 2.0, 2.5, 3.0], abs=1e-12)
    assert gradients == pytest.approx([0.0, 2.0, 2.5, 3.0], abs=1e-12)


def test_clip_higher_moves_the_upper_bound_alone():
    # upper bound 1.3: 2.5 is free, 3 is held at 2.6; the lower bound stays 0.8
    assert surrogate(2.0, 0.2, 0.3)[0] == pytest.approx([-1.0, -2.0, -2.5, -2.6], abs=1e-12)
    assert surrogate(-2.0, 0.2, 0.3)[0] == pytest.approx([1.6, 2.0, 2.5, 3.0], abs=1e-12)


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_without_clipping_the_loss_is_minus_ratio_times_advantage(advantage):
    losses, gradients = surrogate(advantage, None, None)
    assert losses == gradients == pytest.approx([-ratio * advantage for ratio in RATIOS], abs=1e-12)


def test_dual_clip_bounds_the_loss_of_a_negative_advantage_alone():
    # A = -2: gain -1, -2, -2.5, -3, never below 1.3 A = -2.6; beyond it there is no gradient
    losses, gradients = surrogate(-2.0, None, None, dual_clip=1.3)
    assert losses == pytest.approx([1.0, 2.0, 2.5, 2.6], abs=1e-12)
    assert gradients == pytest.approx([1.0, 2.0, 2.5, 0.0], abs=1e-12)
    # with the clip at 0.8 the first gain is -1.6; both ends are held
    losses, gradients = surrogate(-2.0, 0.2, None, dual_clip=1.3)
    assert losses == pytest.approx([1.6, 2.0, 2.5, 2.6], abs=1e-12)
    assert gradients == pytest.approx([0.0, 2.0, 2.5, 0.0], abs=1e-12)
    assert surrogate(2.0, 0.2, None, dual_clip=1.3) == surrogate(2.0, 0.2, None)


def sequence_ratio_terms(old_ratio, mask, **options):
    """Return the terms of a loss by the ratio of completions, and its gradient; logps are 0, so old ones are -log rho."""
    logps = torch.zeros(mask.shape, dtype=torch.float64, requires_grad=True)
    terms = loss_of(logps, mask, old_per_token_logps=-float64(old_ratio).log(), ratio="sequence", clip_eps=None, **options)
    terms.total.backward()
    return terms, logps.grad


def test_the_ratio_of_a_sequence_is_the_geometric_mean_of_those_of_its_tokens():
    # Token ratios 4, 1 | 1.5; the nines are masked. s = sqrt(4 * 1) = 2 for both tokens of the first row, 1.5 in the second.
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    terms, gradient = sequence_ratio_terms(
        [[4.0, 1.0, 9.0], [1.5, 9.0, 9.0]], mask, aggregation="token-mean", beta=0.0, advantages=float64([3.0, 1.0])
    )
    assert terms.ratio[mask].tolist() == pytest.approx([2.0, 2.0, 1.5], abs=1e-12)
    assert terms.log_ratio[mask].exp().tolist() == pytest.approx([4.0, 1.0, 1.5], abs=1e-12)
    # -(3 * 2 + 3 * 2 + 1 * 1.5) / 3 tokens
    assert float(terms.total.detach()) == pytest.approx(-4.5, abs=1e-12)
    # d s / d log pi_t = s / n for each of n tokens: -(3 + 3) * 2 / 2 / 3 = -2 twice, -1.5 / 3 = -0.5
    assert gradient.flatten().tolist() == pytest.approx([-2.0, -2.0, 0.0, -0.5, 0.0, 0.0], abs=1e-12)


def test_the_kl_is_corrected_by_the_ratio_of_its_token_where_the_surrogate_uses_that_of_the_sequence():
    # k1 = 1, 10 at token ratios 4, 1: (4 * 1 + 1 * 10) / 2 = 7; the sequence ratio 2 would give (2 + 20) / 2 = 11
    terms, _ = sequence_ratio_terms(
        [[4.0, 1.0]],
        torch.ones(1, 2, dtype=torch.bool),
        ref_per_token_logps=float64([[-1.0, -10.0]]),
        kl_estimator="k1",
        kl_correction="importance",
    )
    assert float(terms.kl) == pytest.approx(7.0, abs=1e-12)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("seq-mean-token-mean", ((1 + 2 + 3) / 3 + 4 / 1) / 2),  # = 3
        ("token-mean", (1 + 2 + 3 + 4) / 4),  # = 2.5
        ("seq-mean-token-sum", ((1 + 2 + 3) + 4) / 2),  # = 5
        ("seq-mean-token-sum-norm", ((1 + 2 + 3) + 4) / (2 * L_MAX)),  # = 1
    ],
)
def test_aggregations_by_hand(aggregation, expected):
    # With A = -1 and no clip a token's loss is its ratio: 1, 2, 3 in the first row, 4 in the second, none in the third.
    old = -float64([[1.0, 2.0, 3.0, 9.0], [4.0, 9.0, 9.0, 9.0], [9.0] * 4]).log()
    terms = loss_of(
        torch.zeros(3, 4, dtype=torch.float64),
        RAGGED,
        aggregation,
        beta=0.0,
        old_per_token_logps=old,
        advantages=-torch.ones(3, dtype=torch.float64),
        clip_eps=None,
    )
    assert float(terms.total) == pytest.approx(expected, abs=1e-12)
    assert float(terms.policy) == pytest.approx(expected, abs=1e-12)


def test_weights_are_0_outside_the_mask():
    for aggregation in AGGREGATIONS:
        weights = token_weights(RAGGED, aggregation, Denominators.of(RAGGED, L_MAX))
        assert torch.equal(weights != 0, RAGGED)


def test_denominators_count_rows_with_a_token_and_tokens():
    assert Denominators.of(RAGGED, L_MAX) == Denominators(sequences=2, tokens=4, max_completion_tokens=L_MAX)


def test_an_empty_mask_gives_a_loss_and_gradient_of_0():
    empty = torch.zeros(2, 3, dtype=torch.bool)
    assert Denominators.of(empty, L_MAX) == Denominators(sequences=1, tokens=1, max_completion_tokens=L_MAX)
    for aggregation in AGGREGATIONS:
        logps = torch.zeros(2, 3, requires_grad=True)
        terms = loss_of(logps, empty, aggregation)
        terms.total.backward()
        assert terms.total.item() == 0
        assert torch.equal(logps.grad, torch.zeros(2, 3))


@pytest.mark.parametrize(("name", "estimator"), [("k1", k1), ("k2", k2), ("k3", k3)])
def test_the_total_is_the_policy_loss_plus_beta_times_the_named_estimator(name, estimator):
    logps, ref = float64([[-1.0, -2.0]]), float64([[-1.5, -1.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    terms = loss_of(logps, mask, beta=0.3, ref_per_token_logps=ref, kl_estimator=name)
    # one row, two tokens: the mean of the estimator at log r = -0.5 and 1
    expected = float(estimator(float64([-0.5, 1.0])).mean())
    assert float(terms.kl) == pytest.approx(expected, abs=1e-12)
    assert float(terms.total) == pytest.approx(float(terms.policy) + 0.3 * expected, abs=1e-12)


def test_k3_in_the_loss_pulls_by_1_minus_r():
    # d k3 / d logp = 1 - r with r = pi_ref / pi; A = 0 leaves the KL term alone, one token: weight 1
    logps = float64([[math.log(0.25)]]).requires_grad_()
    mask = torch.ones(1, 1, dtype=torch.bool)
    loss_of(logps, mask, beta=0.5, ref_per_token_logps=float64([[math.log(0.1)]]), advantages=float64([0.0])).total.backward()
    assert float(logps.grad) == pytest.approx(0.5 * (1 - 0.1 / 0.25), abs=1e-12)


def test_at_beta_0_the_estimator_is_measured_but_has_no_gradient():
    mask = torch.ones(2, 3, dtype=torch.bool)
    logps = torch.full((2, 3), -1.0, dtype=torch.float64, requires_grad=True)
    terms = loss_of(logps, mask, beta=0.0, kl_estimator="k3", advantages=torch.zeros(2, dtype=torch.float64))
    terms.total.backward()
    assert float(terms.kl) > 0
    assert terms.total.item() == terms.policy.item()
    assert torch.equal(logps.grad, torch.zeros_like(logps))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_at_ratio_1_the_gradient_is_that_of_reinforce(aggregation):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(6, (3, 4, 1), generator=generator)
    advantages = float64([0.5, -1.5, 2.0])
    logps = torch.log_softmax(logits, dim=-1).gather(-1, tokens).squeeze(-1)
    terms = loss_of(logps, RAGGED, aggregation, beta=0.0, old_per_token_logps=logps.detach(), advantages=advantages)
    (gradient,) = torch.autograd.grad(terms.total, logits, retain_graph=True)
    # Witness: REINFORCE, -A log pi, with the denominators written out: n = 3, 1; S = 2, N = 4, L_max = 5.
    weight = {
        "seq-mean-token-mean": float64([1 / 6, 1 / 2, 0.0]),
        "token-mean": float64([1 / 4, 1 / 4, 0.0]),
        "seq-mean-token-sum": float64([1 / 2, 1 / 2, 0.0]),
        "seq-mean-token-sum-norm": float64([1 / 10, 1 / 10, 0.0]),
    }[aggregation]
    reinforce = -((weight * advantages).unsqueeze(1) * RAGGED * logps).sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(reinforce, logits)[0], rtol=0, atol=1e-12)
    assert torch.equal(terms.ratio, torch.ones(3, 4, dtype=torch.float64))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@SETTINGS
@given(
    length_and_piece_of_row=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=7),
    seed=st.integers(0, 1000),
)
@example(length_and_piece_of_row=[(3, 0), (1, 1), (2, 1)], seed=0)
def test_any_split_into_micro_batches_gives_the_same_value_and_gradient(aggregation, length_and_piece_of_row, seed):
    lengths, pieces = zip(*length_and_piece_of_row, strict=True)
    piece_of_row = torch.tensor(pieces)
    generator = torch.Generator().manual_seed(seed)
    logps, old, ref = (torch.randn(len(lengths), 4, generator=generator, dtype=torch.float64) for _ in range(3))
    advantages = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    mask = torch.arange(4) < torch.tensor(lengths).unsqueeze(1)
    denominators = Denominators.of(mask, L_MAX)

    def share(rows):
        leaf = logps.clone().requires_grad_()
        others = {"old_per_token_logps": old[rows], "ref_per_token_logps": ref[rows], "advantages": advantages[rows]}
        terms = loss_of(leaf[rows], mask[rows], aggregation, denominators, **others)
        (gradient,) = torch.autograd.grad(terms.total, leaf)
        return torch.stack([terms.total.detach(), terms.policy, terms.kl]), gradient

    whole_values, whole_gradient = share(torch.arange(len(lengths)))
    shares = [share((piece_of_row == piece).nonzero().squeeze(1)) for piece in range(3)]
    torch.testing.assert_close(sum(values for values, _ in shares), whole_values, rtol=0, atol=1e-12)
    torch.testing.assert_close(sum(gradient for _, gradient in shares), whole_gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("garbage", [0.0, 50.0, math.inf, -math.inf, math.nan])
def test_what_stands_in_masked_places_changes_neither_value_nor_gradient(aggregation, garbage):
    clean = -torch.linspace(0.1, 3.0, 12, dtype=torch.float64).view(3, 4)
    shift = torch.linspace(-0.5, 0.5, 12, dtype=torch.float64).view(3, 4)

    def run(fill, padding):
        def spoil(values):
            return torch.nn.functional.pad(torch.where(RAGGED, values, fill), (0, padding), value=fill)

        logps = spoil(clean).requires_grad_()
        mask = torch.nn.functional.pad(RAGGED, (0, padding))
        others = {"old_per_token_logps": spoil(clean - shift), "ref_per_token_logps": spoil(clean + shift)}
        terms = loss_of(logps, mask, aggregation, **others)
        terms.total.backward()
        return terms.total.detach(), logps.grad

    expected_total, expected_gradient = run(-1.0, padding=0)
    total, gradient = run(garbage, padding=3)
    torch.testing.assert_close(total, expected_total, rtol=0, atol=1e-14)
    torch.testing.assert_close(gradient[:, :4], expected_gradient, rtol=0, atol=1e-14)
    assert torch.equal(gradient[:, 4:], torch.zeros(3, 3, dtype=torch.float64))


def test_the_figures_carry_no_gradient():
    terms = loss_of(torch.full((3, 4), -1.0, requires_grad=True), RAGGED)
    assert terms.total.requires_grad
    assert not any(value.requires_grad for value in (terms.policy, terms.kl, terms.ratio))


def test_an_overflowing_ratio_at_advantage_zero_gives_zero_and_no_gradient() -> None:
    # exp(1000) is infinite in float64; 0 * inf would be NaN. The second row shows that others are untouched: -1 * exp(0).
    log_ratio = torch.tensor([[1000.0], [0.0]], dtype=torch.float64, requires_grad=True)
    loss = clipped_surrogate(log_ratio, torch.tensor([0.0, 1.0], dtype=torch.float64), None, None)
    assert loss.tolist() == [[0.0], [-1.0]]
    loss.sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [[0.0], [-1.0]]
