"""Which sampled tokens count."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def completion_mask(completion_ids: Int[Tensor, "B T"], eos_token_ids: Sequence[int]) -> Bool[Tensor, "B T"]:
    """Mark every sampled token up to and including the first end-of-sequence token.

    Args:
        completion_ids: [B, T] right-padded sampled tokens; the pad token may be an end-of-sequence token, since whatever
            follows the first one is masked anyway.
        eos_token_ids: the ids that end a completion.

    Returns:
        [B, T] bool. A row without any end-of-sequence token (truncated at `max_completion_tokens`) is all true.
    """
    ends = is_eos(completion_ids, eos_token_ids).long()
    ends_before = ends.cumsum(dim=-1) - ends
    return ends_before == 0


def is_eos(token_ids: Int[Tensor, "*shape"], eos_token_ids: Sequence[int]) -> Bool[Tensor, "*shape"]:
    """Mark the tokens that end a completion; same shape as `token_ids`, bool."""
    return torch.isin(token_ids, torch.tensor(list(eos_token_ids), dtype=token_ids.dtype, device=token_ids.device))
