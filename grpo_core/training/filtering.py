"""Completions that the loss leaves out, and the penalty for those that are nearly too long; nothing happens silently."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.algorithm.advantages import group_std
from grpo_core.config import FilterConfig

Figures = dict[str, float]


def overlong_penalty(lengths: Int[Tensor, " B"], limit: int, buffer: int | None) -> Float[Tensor, " B"]:
    """Return what is subtracted from the rewards: 0 until `limit` - `buffer` tokens, rising linearly to 1 at the limit.

    Source: DAPO, arXiv:2503.14476, eq. 13. None = no penalty.

    >>> overlong_penalty(torch.tensor([6, 8, 9, 10]), limit=10, buffer=4)
    tensor([0.0000, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """
    if buffer is None:
        return torch.zeros(lengths.shape, dtype=torch.float64)
    return ((lengths.double() - (limit - buffer)) / buffer).clamp(0, 1)


def filter_rows(
    config: FilterConfig, rewards: Float[Tensor, " B"], truncated: Bool[Tensor, " B"], group_size: int
) -> tuple[Bool[Tensor, " B"], Figures]:
    """Return (rows that the loss keeps, the shares of what it leaves out).

    Args:
        config: which filters are on.
        rewards: as they are compared, after their shaping; a group without two different ones teaches nothing.
        truncated: rows without an end-of-sequence token.
        group_size: G.
    """
    kept, figures = torch.ones_like(truncated), Figures()
    if config.drop_zero_variance_groups:
        equal = (group_std(rewards, group_size) == 0).to(truncated.device)
        kept &= ~equal.repeat_interleave(group_size)
        figures["filter/zero_variance_group_frac"] = float(equal.double().mean())
    if config.mask_truncated_completions:
        kept &= ~truncated
        figures["filter/truncated_frac"] = float(truncated.double().mean())
    if figures:
        figures["filter/kept_frac"] = float(kept.double().mean())
    return kept, figures
