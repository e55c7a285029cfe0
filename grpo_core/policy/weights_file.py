"""Weights as a safetensors file, written a piece at a time.

The library's own function holds Python's lock until the last byte is on its way, and a training that this thread is beside
stands still for so long; its bytes are the same.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Shaped
from torch import Tensor

from grpo_core.machine.large_file import large_file

Weights = Mapping[str, Tensor]
Shapes = Mapping[str, list[int]]
"""Of weights, by their names."""
WEIGHTS_FILE, ADAPTER_FILE = "model.safetensors", "adapter_model.safetensors"
"""As transformers and PEFT call them."""
NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types by their names in the format, in the order in which tensors are stored: the larger numbers first."""
METADATA = {"__metadata__": {"format": "pt"}}
"""Transformers loads no file without it."""


def save_weights(weights: Weights, path: Path) -> str:
    """Write a file that is durable when this returns; return its SHA-256.

    Raises:
        OSError: it cannot be written; what there is of it stays.
        KeyError: the format has no such type.
    """
    with large_file(path) as file:
        file.write(_header(weights))
        for name in _in_order(weights):
            file.write(content_of(weights[name]))
    return file.sha256


def content_of(tensor: Shaped[Tensor, "..."]) -> memoryview:
    """Return the bytes of a tensor, row by row; they are not copied if it lies in the CPU's memory in that order."""
    content: memoryview = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
    return content


def _in_order(weights: Weights) -> list[str]:
    ranks = {dtype: rank for rank, dtype in enumerate(NAMES)}
    return sorted(weights, key=lambda name: (ranks[weights[name].dtype], name))


def _header(weights: Weights) -> bytes:
    entries, end = {}, 0
    for name in _in_order(weights):
        tensor = weights[name]
        start, end = end, end + tensor.nbytes
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(METADATA | entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
