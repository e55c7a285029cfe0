"""Per-token KL(policy || reference): estimators from the sampled token, the exact sum, and what enters a loss.

Symbols          code
  pi_theta       per_token_logps      [B, T]  policy; carries the gradient where the estimator is part of the loss
  pi_ref         ref_per_token_logps  [B, T]  reference, no gradient
  log r          ref_log_ratio        [B, T]  log pi_ref - log pi_theta

Tokens must be drawn from pi_theta; under a stale sampler all three are biased, unless corrected (eq. 5).

  k1 = -log r              (1)  unbiased, variance Var(log r), can be negative
  k2 = (log r)^2 / 2       (2)  biased; its gradient is the gradient of the KL
  k3 = (r - 1) - log r     (3)  unbiased, non-negative; DeepSeekMath, arXiv:2402.03300, eq. 4

Near the reference k3 varies less than k1. RL sharpens a policy, r of sampled tokens then reaches thousands, and the variance of
k3, about E r^2, is far above that of k1: what is reported as drift is k1, or the exact sum (training/measure.py).

  full = sum_v pi_theta(v) (log pi_theta(v) - log pi_ref(v))    (4)  exact, over the vocabulary V
  rho k, rho = pi_theta / pi_old of the token                   (5)  correction `importance`; TRL, DeepSeek-V3.2

What each choice's gradient is stands in docs/algorithm.md and is proved in tests/unit/test_gradients.py. In (5) the ratio is
live for k1 and k3, whose gradient it makes that of the KL, and detached for k2, whose gradient is that of the KL already.

References: Schulman 2020 (joschu.net/blog/kl-approx.html). Departures: none; no clamp (DECISIONS.md, "No clamps").
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Sampled = Literal["k3", "k1", "k2"]
Estimator = Literal["k3", "k1", "k2", "full"]
Correction = Literal["none", "importance"]


def k1(ref_log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return eq. (1), same shape."""
    return -ref_log_ratio


def k2(ref_log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return eq. (2), same shape."""
    return ref_log_ratio.square() / 2


def k3(ref_log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return eq. (3), same shape; expm1 keeps the precision where the two policies nearly agree."""
    return torch.expm1(ref_log_ratio) - ref_log_ratio


ESTIMATORS: dict[Sampled, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def per_token_kl(ref_log_ratio: Float[Tensor, "*shape"], estimator: Sampled) -> Float[Tensor, "*shape"]:
    """Return the named estimator of KL(policy || reference) for each token, in nats.

    >>> per_token_kl(torch.tensor([0.0, 1.0]), "k2")
    tensor([0.0000, 0.5000])
    """
    return ESTIMATORS[estimator](ref_log_ratio)


def full_kl(all_logps: Float[Tensor, "*shape V"], ref_all_logps: Float[Tensor, "*shape V"]) -> Float[Tensor, "*shape"]:
    """Return eq. (4) over the last dimension of two [..., V] tensors of log-probabilities, in nats.

    >>> full_kl(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log())  # (log 2 + log 2/3) / 2
    tensor(0.1438)
    """
    return (all_logps.exp() * (all_logps - ref_all_logps)).sum(dim=-1)


def kl_term(
    ref_log_ratio: Float[Tensor, "B T"],
    log_ratio: Float[Tensor, "B T"],
    estimator: Estimator,
    correction: Correction = "none",
    full: Float[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """Return the [B, T] KL term of a loss.

    Args:
        ref_log_ratio: [B, T] log pi_ref - log pi_theta, with gradient.
        log_ratio: [B, T] log pi_theta - log pi_old, with gradient.
        estimator: which one.
        correction: `importance` multiplies by the token's ratio, eq. (5); `full` samples no token and has none.
        full: [B, T] eq. (4) with gradient; what `full` returns.

    Raises:
        ValueError: `full` without its values.
    """
    if estimator == "full":
        if full is None:
            raise ValueError("estimator full needs its values")
        return full
    sampled = per_token_kl(ref_log_ratio, estimator)
    if correction == "none":
        return sampled
    ratio = log_ratio.exp()
    return (ratio.detach() if estimator == "k2" else ratio) * sampled


def kl_to_go(k1_per_token: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return [B, T] the sum of k1 from each token to the end of its completion: KL as a reward, as return-to-go (ROLL).

    >>> kl_to_go(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[True, True, False]]))
    tensor([[3., 2., 0.]])
    """
    masked = torch.where(loss_mask, k1_per_token, 0.0)
    return torch.where(loss_mask, masked.flip(1).cumsum(dim=1).flip(1), 0.0)
