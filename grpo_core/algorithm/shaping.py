"""Reward shaping before the group comparison, advantage shaping after it: ROLL's keys, in ROLL's order.

    r    the weighted sum of the reward functions                          [B]
    r <- (r - mean) / (std + eps)   `norm` over the group or the batch     `shift` / `scale` leave one half out
    r <- clamp(r, -c, c)            `reward_clip`, after the normalisation
    A    group-relative advantages of r (`advantages.py`)                  [B]
    A <- A - beta * sum_{s >= t} k1_s   where KL is part of the reward     [B, T]
    A <- (A - mean) / sqrt(var + 1e-8)  `whiten_advantages`, over the loss tokens
    A <- clamp(A, -c, c)            `advantage_clip`

Source: ROLL, roll/utils/functionals.py (`reward_postprocess`, `compute_token_reward`, `compute_advantage`). Departures: an
unscorable reward (NaN) stays NaN and leaves every mean; ROLL clips a second time after the KL, which shapes the KL instead of
the reward and is left out.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_core.algorithm.advantages import group_std
from grpo_core.algorithm.kl import kl_to_go

Norm = Literal["none", "group", "batch"]
WHITEN_EPS = 1e-8
NORM_EPS = 1e-6


def shape_rewards(
    rewards: Float[Tensor, " B"],
    group_size: int,
    *,
    norm: Norm = "none",
    shift: bool = True,
    scale: bool = True,
    clip: float | None = None,
) -> Float[Tensor, " B"]:
    """Return [B] shaped rewards in the dtype of `rewards`.

    Args:
        rewards: [B] total rewards, prompt-major; NaN marks an unscorable completion.
        group_size: G.
        norm: over what the mean and the Bessel-corrected standard deviation are taken.
        shift: subtract the mean.
        scale: divide by the standard deviation + 1e-6.
        clip: bound of the absolute value, after the normalisation; None = none.

    >>> shape_rewards(torch.tensor([0.0, 4.0, 1.0, 1.0]), 2, norm="group", scale=False, clip=1.5)
    tensor([-1.5000,  1.5000,  0.0000,  0.0000])
    """
    shaped = rewards.to(torch.float64)
    if norm != "none":
        mean, std = _group_moments(shaped, group_size) if norm == "group" else _batch_moments(shaped)
        shaped = (shaped - mean if shift else shaped) / (std + NORM_EPS if scale else torch.ones_like(std))
    if clip is not None:
        shaped = shaped.clamp(-clip, clip)
    return shaped.to(rewards.dtype)


def shape_advantages(
    advantages: Float[Tensor, " B"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    beta: float = 0.0,
    k1_per_token: Float[Tensor, "B T"] | None = None,
    whiten: bool = False,
    clip: float | None = None,
    scorable: Bool[Tensor, " B"] | None = None,
) -> Float[Tensor, " B"] | Float[Tensor, "B T"]:
    """Return shaped advantages: [B] where every token of a completion has the same, else [B, T] and 0 outside the mask.

    Args:
        advantages: [B].
        loss_mask: [B, T] bool.
        beta: weight of the KL in the reward.
        k1_per_token: [B, T] k1 under the policy that made the rollouts, no gradient; None = KL is not part of the reward.
        whiten: over the loss tokens of the whole step, so that long completions weigh more (as in ROLL).
        clip: bound of the absolute value; None = none.
        scorable: [B] bool; a completion that no reward could score takes no part in the whitening. None = all.
    """
    if k1_per_token is not None:
        advantages = torch.where(loss_mask, advantages.unsqueeze(1) - beta * kl_to_go(k1_per_token, loss_mask), 0.0)
    if whiten:
        per_token = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(loss_mask.shape)
        whitened = loss_mask if scorable is None else loss_mask & scorable.unsqueeze(1)
        advantages = torch.where(whitened, _whitened(per_token, whitened), torch.where(loss_mask, per_token, 0.0))
    return advantages if clip is None else advantages.clamp(-clip, clip)


def _group_moments(rewards: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    mean = rewards.view(-1, group_size).nanmean(dim=1).repeat_interleave(group_size)
    return mean, group_std(rewards, group_size).repeat_interleave(group_size)


def _batch_moments(rewards: Tensor) -> tuple[Tensor, Tensor]:
    finite = rewards[rewards.isfinite()]
    std = finite.std(correction=1) if finite.numel() > 1 else finite.new_zeros(())
    return rewards.nanmean(), std


def _whitened(values: Tensor, mask: Tensor) -> Tensor:
    """Fewer than two tokens have no spread to divide by."""
    tokens = values[mask]
    if tokens.numel() < 2:
        return torch.where(mask, values, 0.0)
    variance = tokens.var(correction=1)
    return torch.where(mask, (values - tokens.mean()) * (variance + WHITEN_EPS).rsqrt(), 0.0)
