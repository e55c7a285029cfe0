"""What the attentions of this package share: transformers' registry, and torch's flash kernel for CPUs."""

import contextlib
from collections.abc import Iterator

import torch
from transformers import PreTrainedConfig, PreTrainedModel

flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""(output, log of the sum of exponentials) of queries [B, h, t, d], keys and values [B, h, S, d]."""
flash_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@contextlib.contextmanager
def attending(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Let a model use an attention of transformers' registry while inside."""
    usual = model.config._attn_implementation
    model.config._attn_implementation = implementation
    try:
        yield
    finally:
        model.config._attn_implementation = usual


def has_full_attention(config: PreTrainedConfig) -> bool:
    """Return whether every layer of a text model sees all tokens before its own."""
    kinds = {*(getattr(config, "layer_types", None) or ())}
    return kinds <= {"full_attention"} and not getattr(config, "sliding_window", None)
