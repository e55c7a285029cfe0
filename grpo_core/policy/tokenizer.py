"""The tokenizer of a model folder; it is loaded without torch, whose import takes seconds."""

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.errors import ModelError, raised_as
from grpo_core.policy.sources.find import TOKENIZERS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a model folder.

    Raises:
        ModelError: there is none, or it has no vocabulary or no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    if not any((folder / name).exists() for name in TOKENIZERS):  # transformers would make an empty one
        raise ModelError(f"model.source: {folder} has no tokenizer ({', '.join(TOKENIZERS)})")
    with raised_as(ModelError, f"model.source: no tokenizer can be loaded from {folder}: {{cause}}", Exception):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:  # a family's own end of text is one
        raise ModelError(f"model.source: the tokenizer of {folder} has no vocabulary; a file of it is missing")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model.source: the tokenizer of {folder} has no end-of-sequence token, so no completion can end")
    return tokenizer
