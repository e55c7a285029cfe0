"""Completions as text."""

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def decode(tokenizer: "PreTrainedTokenizerBase", completion_ids: Tensor, mask: Tensor) -> list[str]:
    """Return B completions as text, without special tokens; `mask` [B, T] marks what belongs to each."""
    rows = [ids[keep].tolist() for ids, keep in zip(completion_ids, mask, strict=True)]
    return [str(text) for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]
