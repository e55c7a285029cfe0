"""A policy's weights as a file for a server on the same machine, with a manifest of what must be in it."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from grpo_core.errors import TrainingError
from grpo_core.machine.disk import free_bytes, whole_or_gone
from grpo_core.policy.policy import Policy

MEMORY = Path("/dev/shm")
"""Where files are memory."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a policy's weights are, without the weights."""

    manifest: dict[str, dict[str, Any]]
    """{name: {"shape", "sha256"}}."""
    digest: str
    """Of the manifest."""


def weights_of(policy: Policy) -> Weights:
    """Return names, shapes and digests of the live weights, in the type that the server holds them in.

    Raises:
        TrainingError: a weight is not finite.
    """
    tensors = _tensors(policy)
    for name, value in tensors.items():
        if not bool(value.isfinite().all()):
            raise TrainingError(f"the policy's weights are not finite and are not sent to the server: {name}")
    manifest = {
        name: {"shape": list(tensor.shape), "sha256": hashlib.sha256(tensor.view(torch.uint8).numpy().data).hexdigest()}
        for name, tensor in tensors.items()
    }
    return Weights(manifest=manifest, digest=hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest())


@contextlib.contextmanager
def weights_file(policy: Policy, folder: Path) -> Iterator[Path]:
    """Write the weights where both processes can read them, and remove them at the end: memory, or `folder` if that is full.

    Raises:
        DiskFullError: there is no room.
    """
    tensors = _tensors(policy)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    place = MEMORY if os.access(MEMORY, os.W_OK) and (free_bytes(MEMORY) or 0) > 2 * size else folder
    with tempfile.TemporaryDirectory(prefix="grpo-weights-", dir=place) as private:
        path = Path(private) / "weights.safetensors"
        with whole_or_gone("the weights for the sampler", path):
            save_file(tensors, path)
        yield path


def _tensors(policy: Policy) -> dict[str, torch.Tensor]:
    """Return each parameter once, by its name in transformers, with its adapter: a tied head has none of its own."""
    dtype = getattr(torch, policy.dtype)
    return {name: value.to(device="cpu", dtype=dtype).contiguous() for name, value in policy.merged_weights()}
