"""Per-token estimators of KL(policy || reference).

Symbols          code
  pi_theta       per_token_logps      [B, T]  policy; carries the gradient where the estimator is part of the loss
  pi_ref         ref_per_token_logps  [B, T]  reference, no gradient
  log r          ref_log_ratio        [B, T]  log pi_ref - log pi_theta

Tokens must be drawn from pi_theta; under a stale sampler all three are biased.

  k1 = -log r              (1)  unbiased, high variance, can be negative
  k2 = (log r)^2 / 2       (2)  biased, low variance; its gradient is the gradient of the KL
  k3 = (r - 1) - log r     (3)  unbiased, non-negative, low variance; DeepSeekMath, arXiv:2402.03300, eq. 4

References: Schulman 2020 (joschu.net/blog/kl-approx.html). Departures: none; no clamp (DECISIONS.md, "No clamps").
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k3", "k1", "k2"]


def k1(ref_log_ratio: Tensor) -> Tensor:
    """Return eq. (1), same shape."""
    return -ref_log_ratio


def k2(ref_log_ratio: Tensor) -> Tensor:
    """Return eq. (2), same shape."""
    return ref_log_ratio.square() / 2


def k3(ref_log_ratio: Tensor) -> Tensor:
    """Return eq. (3), same shape; expm1 keeps the precision where the two policies nearly agree."""
    return torch.expm1(ref_log_ratio) - ref_log_ratio


ESTIMATORS: dict[Estimator, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def per_token_kl(ref_log_ratio: Tensor, estimator: Estimator) -> Tensor:
    """Return the named estimator of KL(policy || reference) for each token, in nats.

    >>> per_token_kl(torch.tensor([0.0, 1.0]), "k2")
    tensor([0.0000, 0.5000])
    """
    return ESTIMATORS[estimator](ref_log_ratio)
