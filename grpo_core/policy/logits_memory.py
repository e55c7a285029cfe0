"""How many tokens are projected to the vocabulary at once. Imports no torch.

Only `KEPT_BYTES` of logits are kept for the backward pass. Where there are more, they are computed `CHUNK_BYTES` at a time, and
once more in the backward pass.
"""

KEPT_BYTES, CHUNK_BYTES = 2**30, 2**27
FLOAT_BYTES = 4
FULL_KL_COPIES = 4
"""Tensors as large as the logits that the exact KL keeps for the backward pass."""
DIVERGENCE_COPIES = 5
"""Tensors as large as the logits that the divergences of two policies have at once."""


def tokens_at_once(num_tokens: int, vocabulary: int) -> int:
    """Return how many of some tokens are projected to a vocabulary at once: all, where their logits can be kept."""
    bytes_of_a_token = FLOAT_BYTES * vocabulary
    return max(1, num_tokens if num_tokens * bytes_of_a_token <= KEPT_BYTES else CHUNK_BYTES // bytes_of_a_token)


def most_at_once(num_tokens: int, vocabulary: int) -> int:
    """Return the most that `tokens_at_once` says for a number of tokens up to this one: more tokens may need less memory."""
    return max(1, min(num_tokens, KEPT_BYTES // (FLOAT_BYTES * vocabulary)))
