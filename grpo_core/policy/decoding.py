"""One further token for each row after an expanded prefix: what the sampler runs for every position.

transformers repeats keys and values for the heads that share them, and makes masks anew, in every layer and for every token.
`FoldedDecoder` hands the flash kernel of CPUs the keys as they lie in the cache: the heads that share them are its queries.
"""

from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from grpo_core.generation.kv_cache import grow_in_place
from grpo_core.policy.attention import attending, flash_attention, refuse_unknown
from grpo_core.policy.forward import EncodedPrefix, backbone, continue_prefix

IMPLEMENTATION = "grpo_decoding"
"""Name of this attention in transformers' registry."""


class Decoder(Protocol):
    """Continues rows a token at a time."""

    def run(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B H"]:
        """Append a token to each row; return the hidden states that predict the next one."""
        ...

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Go on with these rows alone."""
        ...


class PlainDecoder:
    """Any architecture, as transformers runs it."""

    def __init__(self, model: PreTrainedModel, prefix: EncodedPrefix, dtype: torch.dtype) -> None:
        """Continue a prefix whose attention is computed in `dtype`."""
        grow_in_place(prefix.cache, dtype)
        self._model, self._prefix, self._seen = model, prefix, prefix.mask

    def run(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B H"]:
        """See `Decoder.run`."""
        self._seen = torch.cat([self._seen, self._seen.new_ones(len(tokens), 1)], dim=1)
        return continue_prefix(self._model, self._prefix, tokens.unsqueeze(1), self._seen)[:, -1]

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """See `Decoder.keep`."""
        self._seen = self._seen[rows]
        self._prefix.cache.batch_select_indices(rows)


class FoldedDecoder:
    """Architectures of full attention on a CPU; `grouped.why_padded` tells which."""

    def __init__(self, model: PreTrainedModel, prefix: EncodedPrefix, dtype: torch.dtype, most_tokens: int) -> None:
        """Continue a prefix, whose attention is computed in `dtype`, by at most so many tokens."""
        grow_in_place(prefix.cache, dtype)
        self._model, self._cache = model, prefix.cache
        self._positions = prefix.mask.sum(dim=1, keepdim=True)
        self._bias: Tensor | None = None
        if not prefix.mask.all():
            padded = nn.functional.pad(prefix.mask, (0, most_tokens), value=True)
            self._bias = torch.zeros(padded.shape, dtype=dtype).masked_fill_(~padded, -torch.inf)[:, None, None]

    def run(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B H"]:
        """See `Decoder.run`."""
        with attending(self._model, IMPLEMENTATION):
            output = backbone(self._model)(
                input_ids=tokens.unsqueeze(1),
                position_ids=self._positions,
                past_key_values=self._cache,
                use_cache=True,
                bias=self._bias,
            )
        self._positions = self._positions + 1
        hidden: Tensor = output.last_hidden_state[:, -1]
        return hidden

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """See `Decoder.keep`."""
        self._cache.batch_select_indices(rows)
        self._positions = self._positions[rows]
        self._bias = None if self._bias is None else self._bias[rows]


def _attention(
    _module: nn.Module,
    query: Float[Tensor, "B h 1 d"],
    key: Float[Tensor, "B k S d"],
    value: Float[Tensor, "B k S d"],
    _mask: None,
    *,
    bias: Float[Tensor, "B 1 1 most"] | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **features: object,
) -> tuple[Float[Tensor, "B 1 h d"], None]:
    """Attend as transformers' models call it; `bias` is added to the scores, and hides what pads a prompt."""
    refuse_unknown(dropout, features)
    rows, heads, _, size = query.shape
    sharing = heads // key.shape[1]
    folded = query.view(rows, key.shape[1], sharing, size).to(key.dtype)
    mask = None if bias is None else bias[..., : key.shape[2]].expand(-1, 1, sharing, -1)
    seen, _ = flash_attention(folded, key, value, 0.0, False, attn_mask=mask, scale=scaling)
    return seen.reshape(rows, 1, heads, size), None


AttentionInterface.register(IMPLEMENTATION, _attention)
