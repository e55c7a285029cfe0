"""The GRPO loss: clipped surrogate plus beta times KL, aggregated over tokens.

Symbols          code
  rho_t          exp(log_ratio)   pi_theta / pi_old of one token
  s              the ratio of a whole completion, length-normalised
  A              advantages       [B], broadcast over the tokens of a completion, or [B, T]
  l_t            per-token loss   [B, T]

  l_t = -min(rho_t A, clip(rho_t, 1 - eps, 1 + eps_high) A) + beta KL_t       (1)  DeepSeekMath, arXiv:2402.03300, eq. 3
  L   = sum_{i,t} w_{i,t} l_{i,t}                                             (2)
  s   = exp(mean_t log rho_t), in place of rho_t in (1)                       (3)  GSPO, arXiv:2507.18071, eq. 7
  l_t = -max(min(rho_t A, clip(rho_t) A), c A)  where A < 0                   (4)  dual clip, arXiv:1912.09729

The KL term keeps the token ratio where the surrogate uses (3).

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
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_core.algorithm.kl import Correction, Estimator, kl_term

Ratio = Literal["token", "sequence"]
Aggregation = Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, kw_only=True)
class Denominators:
    """What the weights of eq. (2) are divided by, for one optimizer step."""

    sequences: int
    """S: rows with at least one loss token."""
    tokens: float
    """N: loss tokens; TRL divides several minibatches by their mean number."""
    max_completion_tokens: int
    """L_max: the constant of Dr. GRPO."""

    @classmethod
    def of(cls, loss_mask: Bool[Tensor, "B T"], max_completion_tokens: int) -> "Denominators":
        """Count over the [B, T] loss mask of a whole optimizer step; an empty mask counts as 1, never 0."""
        return cls(
            sequences=max(int(loss_mask.any(dim=1).sum()), 1),
            tokens=max(int(loss_mask.sum()), 1),
            max_completion_tokens=max_completion_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """One (micro-)batch's share of the step's loss; shares add up."""

    total: Float[Tensor, ""]
    """Scalar with gradient: policy + beta * kl."""
    policy: Float[Tensor, ""]
    """Scalar: the surrogate's share."""
    kl: Float[Tensor, ""]
    """Scalar: the estimator's share before beta."""
    ratio: Float[Tensor, "B T"]
    """[B, T] the ratio that the surrogate used, no gradient."""
    log_ratio: Float[Tensor, "B T"]
    """[B, T] log rho_t of each token, no gradient."""
    per_token: Float[Tensor, "B T"]
    """[B, T] what each token adds to the total, no gradient."""


def surrogate_log_ratio(log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], level: Ratio) -> Float[Tensor, "B T"]:
    """Return the [B, T] log ratios that the surrogate uses: each token's own, or eq. (3) for every token of a completion.

    Args:
        log_ratio: [B, T] log pi_theta - log pi_old, with gradient; 0 outside the mask.
        loss_mask: [B, T] bool.
        level: `token` or `sequence`.
    """
    if level == "token":
        return log_ratio
    lengths = loss_mask.sum(dim=1, keepdim=True).clamp(min=1)
    mean = (log_ratio * loss_mask).sum(dim=1, keepdim=True) / lengths
    return mean.expand_as(log_ratio)


def clipped_surrogate(
    log_ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    clip_eps: float | None,
    clip_eps_high: float | None,
    dual_clip: float | None = None,
) -> Float[Tensor, "B T"]:
    """Return the [B, T] per-token policy loss of eq. (1).

    Args:
        log_ratio: [B, T] log pi_theta - log pi_old, with gradient.
        advantages: [B] or [B, T].
        clip_eps: eps; None = no clipping.
        clip_eps_high: eps_high of DAPO's clip-higher; None = the same as `clip_eps`.
        dual_clip: c of eq. (4), above 1 + eps_high; None = off.
    """
    per_token = advantages if advantages.dim() == 2 else advantages.unsqueeze(1)
    # Where the advantage is 0 the surrogate is 0 whatever the ratio; an overflowing one would make it 0 * inf = NaN.
    ratio = torch.where(per_token == 0, 0.0, log_ratio).exp()
    gain = ratio * per_token
    if clip_eps is not None:
        upper = 1 + (clip_eps if clip_eps_high is None else clip_eps_high)
        gain = torch.minimum(gain, ratio.clamp(1 - clip_eps, upper) * per_token)
    if dual_clip is not None:
        gain = torch.where(per_token < 0, torch.maximum(gain, dual_clip * per_token), gain)
    return -gain


def token_weights(
    loss_mask: Bool[Tensor, "B T"], aggregation: Aggregation, denominators: Denominators, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "B T"]:
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
    per_token_logps: Float[Tensor, "B T"],
    old_per_token_logps: Float[Tensor, "B T"],
    ref_per_token_logps: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    denominators: Denominators,
    beta: float,
    kl_estimator: Estimator = "k3",
    kl_correction: Correction = "none",
    full_kl: Float[Tensor, "B T"] | None = None,
    clip_eps: float | None = 0.2,
    clip_eps_high: float | None = None,
    dual_clip: float | None = None,
    ratio: Ratio = "token",
    sampler_weights: Float[Tensor, "B T"] | None = None,
    aggregation: Aggregation = "seq-mean-token-mean",
) -> LossTerms:
    """Return eq. (2) over the rows given, as a share of the optimizer step that `denominators` describes.

    `per_token_logps`, of the current policy, carry the gradient. `old_per_token_logps` are the trainer's own, of the policy
    that made the rollouts; where nothing was updated in between, pass `per_token_logps.detach()`: the ratio is 1 and carries
    the gradient. `advantages` are one a completion, or one a token where they differ (KL in the reward, whitening). At `beta` 0
    the KL is measured and does not enter the total. `kl_estimator`, `kl_correction` and `full_kl` are those of `kl.kl_term`,
    `clip_eps`, `clip_eps_high` and `dual_clip` those of `clipped_surrogate`, `ratio` the level of `surrogate_log_ratio`;
    `aggregation` is one of the module's table. `sampler_weights` (pi_old / pi_sampler, see `mismatch.py`) multiply the
    surrogate where the sampler's numbers differ from the trainer's; None = the sampler is the policy.
    """
    # Masked before any exponential: an infinity at a masked position would make its zero weight a NaN gradient.
    log_ratio = torch.where(loss_mask, per_token_logps - old_per_token_logps, 0.0)
    ref_log_ratio = torch.where(loss_mask, ref_per_token_logps - per_token_logps, 0.0)
    weights = token_weights(loss_mask, aggregation, denominators, log_ratio.dtype)
    used = surrogate_log_ratio(log_ratio, loss_mask, ratio)
    surrogate = clipped_surrogate(used, advantages, clip_eps, clip_eps_high, dual_clip)
    if sampler_weights is not None:
        surrogate = surrogate * sampler_weights
    of_policy, of_kl = weights * surrogate, weights * kl_term(ref_log_ratio, log_ratio, kl_estimator, kl_correction, full_kl)
    policy, kl = of_policy.sum(), of_kl.sum()
    total, per_token = (policy + beta * kl, of_policy + beta * of_kl) if beta else (policy, of_policy)
    shown = {"policy": policy, "kl": kl, "ratio": used.exp(), "log_ratio": log_ratio, "per_token": per_token}
    return LossTerms(total=total, **{name: value.detach() for name, value in shown.items()})
