"""The GRPO loss: clipped surrogate plus beta times KL, aggregated over tokens.

Symbols          code
  rho_t          exp(log_ratio)   pi_theta / pi_old of one token
  A              advantages       [B], broadcast over the tokens of a completion
  l_t            per-token loss   [B, T]

  l_t = -min(rho_t A, clip(rho_t, 1 - eps, 1 + eps_high) A) + beta KL_t       (1)  DeepSeekMath, arXiv:2402.03300, eq. 3
  L   = sum_{i,t} w_{i,t} l_{i,t}                                             (2)

Every aggregation is a choice of the weights w in (2). With m the loss mask, n_i = sum_t m_{i,t}, S the sequences with at
least one loss token, N the loss tokens and L_max = `max_completion_tokens`:

  seq-mean-token-mean       m / (n_i S)       DeepSeekMath, arXiv:2402.03300, eq. 3
  token-mean                m / N             DAPO, arXiv:2503.14476
  seq-mean-token-sum        m / S             verl, ROLL
  seq-mean-token-sum-norm   m / (L_max S)     Dr. GRPO, arXiv:2503.20783

S and N are those of the whole optimizer step, so splitting it into micro-batches changes neither value nor gradient.
The KL term is weighted like the surrogate: beta means something else under each aggregation.

Adding an aggregation: one branch in `token_weights`, one name in `Aggregation`, one hand-computed case in its test.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grpo_core.algorithm.kl import Estimator, per_token_kl

Aggregation = Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, kw_only=True)
class Denominators:
    """What the weights of eq. (2) are divided by, for one optimizer step."""

    sequences: int
    """S: rows with at least one loss token."""
    tokens: int
    """N: loss tokens."""
    max_completion_tokens: int
    """L_max: the constant of Dr. GRPO."""

    @classmethod
    def of(cls, loss_mask: Tensor, max_completion_tokens: int) -> "Denominators":
        """Count over the [B, T] loss mask of a whole optimizer step; an empty mask counts as 1, never 0."""
        return cls(
            sequences=max(int(loss_mask.any(dim=1).sum()), 1),
            tokens=max(int(loss_mask.sum()), 1),
            max_completion_tokens=max_completion_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """One (micro-)batch's share of the step's loss; shares add up."""

    total: Tensor
    """Scalar with gradient: policy + beta * kl."""
    policy: Tensor
    """Scalar: the surrogate's share."""
    kl: Tensor
    """Scalar: the estimator's share before beta."""
    ratio: Tensor
    """[B, T] rho_t, no gradient."""


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip_eps: float | None, clip_eps_high: float | None) -> Tensor:
    """Return the [B, T] per-token policy loss of eq. (1).

    Args:
        log_ratio: [B, T] log pi_theta - log pi_old, with gradient.
        advantages: [B].
        clip_eps: eps; None = no clipping.
        clip_eps_high: eps_high of DAPO's clip-higher; None = the same as `clip_eps`.
    """
    # Where the advantage is 0 the surrogate is 0 whatever the ratio; an overflowing one would make it 0 * inf = NaN.
    ratio = torch.where(advantages.unsqueeze(1) == 0, 0.0, log_ratio).exp()
    gain = ratio * advantages.unsqueeze(1)
    if clip_eps is None:
        return -gain
    upper = 1 + (clip_eps if clip_eps_high is None else clip_eps_high)
    clipped_gain = ratio.clamp(1 - clip_eps, upper) * advantages.unsqueeze(1)
    return -torch.minimum(gain, clipped_gain)


def token_weights(
    loss_mask: Tensor, aggregation: Aggregation, denominators: Denominators, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the [B, T] weights of eq. (2) in `dtype`; 0 where the mask is 0."""
    mask = loss_mask.to(dtype)
    if aggregation == "token-mean":
        return mask / denominators.tokens
    per_sequence = mask / denominators.sequences
    if aggregation == "seq-mean-token-sum":
        return per_sequence
    if aggregation == "seq-mean-token-sum-norm":
        return per_sequence / denominators.max_completion_tokens
    return per_sequence / mask.sum(dim=1, keepdim=True).clamp(min=1)


def grpo_loss(
    *,
    per_token_logps: Tensor,
    old_per_token_logps: Tensor,
    ref_per_token_logps: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    denominators: Denominators,
    beta: float,
    kl_estimator: Estimator = "k3",
    clip_eps: float | None = 0.2,
    clip_eps_high: float | None = None,
    aggregation: Aggregation = "seq-mean-token-mean",
) -> LossTerms:
    """Return eq. (2) over the rows given, as a share of the optimizer step that `denominators` describes.

    Args:
        per_token_logps: [B, T] current policy, with gradient.
        old_per_token_logps: [B, T] policy that made the rollouts (the trainer's own forward pass). Where nothing was
            updated in between, pass `per_token_logps.detach()`: the ratio is 1 and carries the gradient.
        ref_per_token_logps: [B, T] reference.
        advantages: [B].
        loss_mask: [B, T] bool.
        denominators: of the whole optimizer step.
        beta: weight of the KL term; at 0 the estimator is measured and does not enter the total.
        kl_estimator: which estimator enters the loss.
        clip_eps: see `clipped_surrogate`.
        clip_eps_high: see `clipped_surrogate`.
        aggregation: see the module docstring.
    """
    # Masked before any exponential: an infinity at a masked position would make its zero weight a NaN gradient.
    log_ratio = torch.where(loss_mask, per_token_logps - old_per_token_logps, 0.0)
    ref_log_ratio = torch.where(loss_mask, ref_per_token_logps - per_token_logps, 0.0)
    weights = token_weights(loss_mask, aggregation, denominators, log_ratio.dtype)
    policy = (weights * clipped_surrogate(log_ratio, advantages, clip_eps, clip_eps_high)).sum()
    kl = (weights * per_token_kl(ref_log_ratio, kl_estimator)).sum()
    total = policy + beta * kl if beta else policy
    return LossTerms(total=total, policy=policy.detach(), kl=kl.detach(), ratio=log_ratio.detach().exp())
