"""Importance weights between the sampler that drew the tokens and the trainer that computes their log-probabilities.

    w_t = pi_old(token; trainer) / pi_old(token; sampler)                   per token
    w   = exp(sum_t log w_t)                                                per sequence
    truncate: min(w, c)        TIS, Yao et al. 2025                         mask: w where w <= c, else 0 (IcePop, TRL `*_mask`)

The same weights on paper; in floating point (another kernel, bfloat16, a quantised engine) they differ from 1. With the
embedded sampler they are 1 to rounding; vLLM needs them.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Level = Literal["token", "sequence"]
Treatment = Literal["truncate", "mask"]


def sampler_weights(
    old_per_token_logps: Float[Tensor, "B T"],
    sampling_per_token_logps: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    level: Level = "token",
    treatment: Treatment = "truncate",
    bound: float = 2.0,
) -> Float[Tensor, "B T"]:
    """Return [B, T] weights for the surrogate, no gradient; 1 outside the mask.

    Args:
        old_per_token_logps: [B, T] of the rollout policy, trainer's forward pass.
        sampling_per_token_logps: [B, T] of the same tokens, as the sampler saw them.
        loss_mask: [B, T] bool.
        level: one weight a token, or the product over a completion for each of its tokens.
        treatment: what happens above the bound.
        bound: c.
    """
    log_weights = torch.where(loss_mask, old_per_token_logps - sampling_per_token_logps, 0.0).detach()
    if level == "sequence":
        log_weights = log_weights.sum(dim=1, keepdim=True).expand_as(log_weights)
    weights = log_weights.exp()
    treated = weights.clamp(max=bound) if treatment == "truncate" else torch.where(weights <= bound, weights, 0.0)
    return torch.where(loss_mask, treated, 1.0)
