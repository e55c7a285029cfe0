"""Continue rows a token at a time after their prompts, as transformers runs the model: for any architecture."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.generation.kv_cache import grow_in_place
from grpo_core.policy.forward import EncodedPrefix, continue_prefix, vocabulary_head


@dataclass(frozen=True, kw_only=True)
class PlainDecoding:
    """A model as transformers decodes it, while its weights stay the same."""

    model: PreTrainedModel
    dtype: torch.dtype
    """Of keys and values."""

    @property
    def logits(self) -> Callable[[Tensor], Tensor]:
        """The vocabulary head, in fp32."""
        return vocabulary_head(self.model)

    def after(self, prefix: EncodedPrefix, most_tokens: int) -> "PlainDecoder":
        """Return what continues the rows of an expanded prefix by at most so many tokens. It takes over the cache."""
        grow_in_place(prefix.cache, self.dtype, most_tokens)
        return PlainDecoder(self.model, prefix)


class PlainDecoder:
    """Rows after an expanded prefix."""

    def __init__(self, model: PreTrainedModel, prefix: EncodedPrefix) -> None:
        """Continue a prefix whose cache grows in place."""
        self._model, self._prefix, self._seen = model, prefix, prefix.mask

    def run(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B H"]:
        """Append a token to each row; return the hidden states that predict the next one."""
        self._seen = torch.cat([self._seen, self._seen.new_ones(len(tokens), 1)], dim=1)
        return continue_prefix(self._model, self._prefix, tokens.unsqueeze(1), self._seen)[:, -1]

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Continue these rows alone."""
        self._seen = self._seen[rows]
        self._prefix.cache.batch_select_indices(rows)
