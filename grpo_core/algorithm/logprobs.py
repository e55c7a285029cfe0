"""Log-probabilities and entropy of sampled tokens, from hidden states, a chunk of tokens at a time.

The logits of a step are its largest tensor (B x T x V floats: 8 x 1024 x 151,936 in fp32 is 5 GB a copy). Only completion
tokens are projected to the vocabulary, `CHUNK_TOKENS` at once, and where there is more than one chunk its logits are
recomputed in the backward pass instead of kept.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_core.algorithm.kl import full_kl

CHUNK_TOKENS = 2048


def token_logps(
    hidden: Tensor, head: Callable[[Tensor], Tensor], token_ids: Tensor, temperature: float, chunk_tokens: int = CHUNK_TOKENS
) -> tuple[Tensor, Tensor]:
    """Return log pi(token) of the temperature-scaled policy and the entropy of the distribution it came from.

    Args:
        hidden: [N, H] last hidden states at the positions that predict `token_ids`.
        head: the projection to the vocabulary.
        token_ids: [N] the tokens that were sampled.
        temperature: what the sampler divided the logits by; logps are of that same policy.
        chunk_tokens: how many tokens are projected at once; it changes memory, not the result.

    Returns:
        ([N] log-probabilities in fp32 with gradient, [N] entropies in nats without gradient).
    """
    pieces = [
        (hidden[start : start + chunk_tokens], token_ids[start : start + chunk_tokens])
        for start in range(0, hidden.shape[0], chunk_tokens)
    ]
    if not pieces:
        empty = hidden.new_zeros(0, dtype=torch.float32)
        return empty, empty.detach()
    recompute = len(pieces) > 1 and torch.is_grad_enabled()
    results = [
        checkpoint(_chunk_logps, states, head, ids, temperature, use_reentrant=False)
        if recompute
        else _chunk_logps(states, head, ids, temperature)
        for states, ids in pieces
    ]
    return torch.cat([logps for logps, _ in results]), torch.cat([entropy for _, entropy in results])


def token_full_kl(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    ref_hidden: Tensor,
    ref_head: Callable[[Tensor], Tensor],
    *,
    temperature: float,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Tensor:
    """Return [N] exact KL(policy || reference) over the vocabulary at each position, in nats, with gradient for the policy.

    Args:
        hidden: [N, H] last hidden states of the policy.
        head: its projection to the vocabulary.
        ref_hidden: [N, H'] those of the reference at the same positions.
        ref_head: its projection.
        temperature: both policies are scaled by it.
        chunk_tokens: how many tokens are projected at once; it changes memory, not the result.
    """

    def chunk(states: Tensor, ref_states: Tensor) -> Tensor:
        ref_all_logps = _all_logps(ref_states, ref_head, temperature).detach()
        return full_kl(_all_logps(states, head, temperature), ref_all_logps)

    starts = range(0, hidden.shape[0], chunk_tokens)
    pieces = [(hidden[start : start + chunk_tokens], ref_hidden[start : start + chunk_tokens]) for start in starts]
    if not pieces:
        return hidden.new_zeros(0, dtype=torch.float32)
    recompute = len(pieces) > 1 and torch.is_grad_enabled()
    return torch.cat([checkpoint(chunk, *piece, use_reentrant=False) if recompute else chunk(*piece) for piece in pieces])


def _all_logps(hidden: Tensor, head: Callable[[Tensor], Tensor], temperature: float) -> Tensor:
    """At least fp32: the difference of two log-probabilities is what KL and ratios are made of."""
    logits = head(hidden)
    return torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature, dim=-1)


def _chunk_logps(
    hidden: Tensor, head: Callable[[Tensor], Tensor], token_ids: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    all_logps = _all_logps(hidden, head, temperature)
    logps = all_logps.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        entropy = -(all_logps.exp() * all_logps).sum(dim=-1)
    return logps, entropy
