"""Completions that the loss leaves out, and the penalty for those that are nearly too long; nothing happens silently."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.algorithm.advantages import teaching_groups
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
    config: FilterConfig, advantages: Float[Tensor, " B"], truncated: Bool[Tensor, " B"], group_size: int
) -> tuple[Bool[Tensor, " B"], Figures]:
    """Return (rows that the loss keeps, the shares of what it leaves out).

    Args:
        config: which filters are on.
        advantages: of the group comparison.
        truncated: rows without an end-of-sequence token.
        group_size: G.
    """
    kept, figures = torch.ones_like(truncated), Figures()
    if config.drop_zero_variance_groups:
        kept &= teaching_groups(advantages, group_size).repeat_interleave(group_size)
    if config.mask_truncated_completions:
        kept &= ~truncated
        figures["filter/truncated_frac"] = float(truncated.double().mean())
    if config.drop_zero_variance_groups or config.mask_truncated_completions:
        figures["filter/kept_frac"] = float(kept.double().mean())
    return kept, figures
