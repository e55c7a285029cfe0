"""Weights as a safetensors file."""

from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Shaped
from safetensors.torch import save_file
from torch import Tensor

from grpo_core.machine.disk import flush, sha256_of

Weights = Mapping[str, Tensor]
Shapes = Mapping[str, list[int]]
"""Of weights, by their names."""
WEIGHTS_FILE = "model.safetensors"
"""As transformers calls it."""


def save_weights(weights: Weights, path: Path) -> str:
    """Write a file that is durable when this returns; return its SHA-256.

    Raises:
        OSError, SafetensorError: it cannot be written; what there is of it stays.
    """
    stored = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    save_file(stored, path, metadata={"format": "pt"})  # transformers loads no file without it
    flush(path)
    return sha256_of(path)


def content_of(tensor: Shaped[Tensor, "..."]) -> memoryview:
    """Return the bytes of a tensor, row by row; they are not copied if it lies in the CPU's memory in that order."""
    content: memoryview = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
    return content
