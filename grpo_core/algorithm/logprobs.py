"""Log-probabilities and entropy of sampled tokens, from hidden states, a chunk of tokens at a time.

The logits of a step are its largest tensor (B x T x V floats: 8 x 1024 x 151,936 in fp32 is 5 GB a copy). Only completion
tokens are projected to the vocabulary, and where there are many, a chunk of them at a time, once more in the backward pass
(`policy/outline.py` decides).
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_core.algorithm.divergence import TokenDivergences, divergences
from grpo_core.algorithm.kl import full_kl

Result = TypeVar("Result")


def token_logps(
    hidden: Float[Tensor, "N H"],
    head: Callable[[Tensor], Tensor],
    token_ids: Int[Tensor, " N"],
    temperature: float,
    chunk_tokens: int | None = None,
) -> Float[Tensor, " N"]:
    """Return [N] log pi(token) of the temperature-scaled policy in fp32; the arguments are as in `token_logps_and_entropy`."""

    def chunk(states: Tensor, ids: Tensor) -> Tensor:
        return _of_tokens(_all_logps(states, head, temperature), ids)

    return torch.cat(_in_chunks(chunk, hidden, token_ids, chunk_tokens))


def token_logps_and_entropy(
    hidden: Float[Tensor, "N H"],
    head: Callable[[Tensor], Tensor],
    token_ids: Int[Tensor, " N"],
    temperature: float,
    chunk_tokens: int | None = None,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return log pi(token) of the temperature-scaled policy and the entropy of the distribution it came from.

    Args:
        hidden: [N, H] last hidden states at the positions that predict `token_ids`.
        head: the projection to the vocabulary.
        token_ids: [N] the tokens that were sampled.
        temperature: what the sampler divided the logits by; logps are of that same policy.
        chunk_tokens: how many tokens are projected at once (None = all); it changes memory, not the result.

    Returns:
        ([N] log-probabilities in fp32 with gradient, [N] entropies in nats without gradient).
    """

    def chunk(states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        all_logps = _all_logps(states, head, temperature)
        with torch.no_grad():
            entropy = -all_logps.exp().mul_(all_logps).sum(dim=-1)
        return _of_tokens(all_logps, ids), entropy

    logps, entropies = zip(*_in_chunks(chunk, hidden, token_ids, chunk_tokens), strict=True)
    return torch.cat(logps), torch.cat(entropies)


def token_full_kl(
    hidden: Float[Tensor, "N H"],
    head: Callable[[Tensor], Tensor],
    ref_hidden: Float[Tensor, "N H_ref"],
    ref_head: Callable[[Tensor], Tensor],
    *,
    temperature: float,
    chunk_tokens: int | None = None,
) -> Float[Tensor, " N"]:
    """Return [N] exact KL(policy || reference) over the vocabulary at each position, in nats, with gradient for the policy.

    Args:
        hidden: [N, H] last hidden states of the policy.
        head: its projection to the vocabulary.
        ref_hidden: [N, H_ref] those of the reference at the same positions.
        ref_head: its projection.
        temperature: both policies are scaled by it.
        chunk_tokens: how many tokens are projected at once (None = all); it changes memory, not the result.
    """

    def chunk(states: Tensor, ref_states: Tensor) -> Tensor:
        ref_all_logps = _all_logps(ref_states, ref_head, temperature).detach()
        return full_kl(_all_logps(states, head, temperature), ref_all_logps)

    return torch.cat(_in_chunks(chunk, hidden, ref_hidden, chunk_tokens))


@torch.no_grad()
def token_divergences(
    hidden: Float[Tensor, "N H"],
    head: Callable[[Tensor], Tensor],
    other_hidden: Float[Tensor, "N H_other"],
    other_head: Callable[[Tensor], Tensor],
    *,
    temperature: float,
    chunk_tokens: int | None = None,
) -> TokenDivergences:
    """Return [N] divergences of a policy from another one at each position; the arguments are those of `token_full_kl`."""

    def chunk(states: Tensor, other_states: Tensor) -> TokenDivergences:
        return divergences(_all_logps(states, head, temperature), _all_logps(other_states, other_head, temperature))

    return TokenDivergences(*map(torch.cat, zip(*_in_chunks(chunk, hidden, other_hidden, chunk_tokens), strict=True)))


def _in_chunks(
    function: Callable[[Tensor, Tensor], Result], first: Tensor, second: Tensor, chunk_tokens: int | None
) -> list[Result]:
    """Apply `function` to `chunk_tokens` rows of both at once; where there are several chunks, the backward pass recomputes."""
    size = chunk_tokens or max(len(first), 1)
    pieces = list(zip(torch.split(first, size), torch.split(second, size), strict=True))
    if len(pieces) > 1 and torch.is_grad_enabled():
        return [checkpoint(function, *piece, use_reentrant=False) for piece in pieces]
    return [function(*piece) for piece in pieces]


def _of_tokens(all_logps: Float[Tensor, "N V"], token_ids: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    return all_logps.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)


def _all_logps(hidden: Tensor, head: Callable[[Tensor], Tensor], temperature: float) -> Tensor:
    """At least fp32: the difference of two log-probabilities is what KL and ratios are made of."""
    logits = head(hidden)
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(exact if temperature == 1 else exact / temperature, dim=-1)
