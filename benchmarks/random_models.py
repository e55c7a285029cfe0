"""Llamas of random weights, made on the spot with a tokenizer of words: no model is downloaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.training.workload import QUESTION

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

UNKNOWN, END = "<unk>", "<|end|>"
"""Tokens 0 and 1."""
ENDS = 64
"""One token in so many ends a completion, so that completions differ in length."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a Llama."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int

    def config(self, **more: object) -> "LlamaConfig":
        """Return transformers' configuration."""
        from transformers import LlamaConfig

        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=1,
            **more,
        )

    def model(self, seed: int = 0) -> "LlamaForCausalLM":
        """Return a model of it; the first matrices decide what is likely, so weights are larger than transformers' own."""
        import torch
        from transformers import LlamaForCausalLM

        torch.manual_seed(seed)
        return LlamaForCausalLM(self.config(initializer_range=0.05)).eval()


TINY = Shape(hidden=32, intermediate=64, layers=2, heads=4, kv_heads=2, vocabulary=512)
MEDIUM = Shape(hidden=512, intermediate=1536, layers=8, heads=8, kv_heads=4, vocabulary=8192)
"""33 million weights."""
SMOLLM2_135M = Shape(hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, vocabulary=49152)
QWEN25_05B = Shape(hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2, vocabulary=151936)
"""Sizes of those models; the weights are random and the biases of Qwen's are not there."""


def write_model(shape: Shape, folder: Path, *, ends: bool = True) -> Path:
    """Write a random model and its tokenizer as a folder of transformers', and return it.

    Args:
        shape: of the model.
        folder: is made.
        ends: whether one token in ENDS ends a completion; else one token of all does.
    """
    model = shape.model()
    model.generation_config.eos_token_id = list(range(1, shape.vocabulary, ENDS)) if ends else 1
    model.save_pretrained(folder)
    words(shape.vocabulary).save_pretrained(folder)
    return folder


def words(size: int) -> "PreTrainedTokenizerBase":
    """Return a tokenizer of `size` words, among them those of the benchmarks' prompts and the numbers below 200."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = [word for word in QUESTION.split() if word != "{}"] + [str(number) for number in range(-100, 200)]
    listed = list(dict.fromkeys([UNKNOWN, END, *known]))[:size]
    listed += [f"w{number}" for number in range(size - len(listed))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(listed)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )
