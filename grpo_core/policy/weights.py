"""Weights by their names: as a safetensors file, as a digest, and how far two of them are apart."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn, split
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from grpo_core.machine.disk import flush
from grpo_core.parallel.sharded import full

Weights = Mapping[str, Tensor]
WEIGHTS_FILE = "model.safetensors"
"""As transformers calls it."""
PIECE = 2**18
"""Weights whose squared differences are summed in their own precision; sums of pieces are summed in double."""


def save_weights(weights: Weights, path: Path) -> None:
    """Write a file that is durable when this returns.

    Raises:
        OSError, SafetensorError: it cannot be written; what there is of it stays.
    """
    # transformers loads no file without the format.
    save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, path, metadata={"format": "pt"})
    flush(path)


def digest_of(weights: Weights) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of weights, in hexadecimal digits."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(full(tensor.detach()).cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def weights_of(model: nn.Module) -> Weights:
    """Return weights and buffers of a model in its memory, each under its first name: safetensors stores no tied one twice."""
    names = dict([*model.named_parameters(), *model.named_buffers()])
    return {name: tensor for name, tensor in model.state_dict().items() if name in names}


def as_on_hub(model: PreTrainedModel, weights: Weights) -> Weights:
    """Return the weights of a model as a folder of transformers holds them, which joins the experts of a layer in one."""
    converted: Weights = revert_weight_conversion(model, dict(weights))
    return converted


def squared_difference(one: Float[Tensor, "..."], other: Float[Tensor, "..."]) -> float:
    """Sum the squares piece by piece, which stays in the processor's cache: the weights are read once, nothing is written.

    Where the two are on different devices, they meet on the first one's.
    """
    pieces = zip(split(one.flatten(), PIECE), split(other.to(one.device).flatten(), PIECE), strict=True)
    return sum(float((difference := first - second).dot(difference)) for first, second in pieces)
