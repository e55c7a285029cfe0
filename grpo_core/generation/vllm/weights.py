"""A policy's weights as a file for a server on the same machine, with a manifest of what must be in it."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from grpo_core.errors import StaleWeightsError, TrainingError
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
    place = MEMORY if os.access(MEMORY, os.W_OK) and free_bytes(MEMORY) > 2 * size else folder
    with tempfile.TemporaryDirectory(prefix="grpo-weights-", dir=place) as private:
        path = Path(private) / "weights.safetensors"
        with whole_or_gone("the weights for the sampler", path):
            save_file(tensors, path)
        yield path


def _tensors(policy: Policy) -> dict[str, torch.Tensor]:
    """Return each parameter once, by its name in transformers, with its adapter: a tied head has none of its own."""
    dtype = getattr(torch, policy.dtype)
    return {name: value.to(device="cpu", dtype=dtype).contiguous() for name, value in policy.merged_weights()}


MOST_TOKENS = 256
MOST_DIFFERENCE = 1e-4
"""In float32, of any token, in nats."""
MOST_RMS = 5e-5
"""In float32, of the change since the last weights, root mean square over tokens."""
OVER_ROUNDING = 4.0
"""In bfloat16, of a change that is judged, whose slope equal rounding before and after it moves by at most 2 / 4
(Cauchy-Schwarz); and at most, of what the server's change differs from the trainer's."""
LEAST_FOLLOWED = 0.5


def probe_of(prompts: Sequence[Sequence[int]], most: int = MOST_TOKENS) -> list[tuple[int, ...]]:
    """Return the first prompts, each once, with `most` log-probabilities in all: of all tokens but the first of each.

    >>> probe_of([[5, 6, 7], [8], [5, 6, 7], [5, 6, 8, 9]], most=4)
    [(5, 6, 7), (5, 6, 8)]
    """
    chosen: list[tuple[int, ...]] = []
    for prompt in dict.fromkeys(map(tuple, prompts)):
        cut = prompt[: most + 1]
        if len(cut) > 1:
            chosen.append(cut)
            most -= len(cut) - 1
    return chosen


@dataclass(frozen=True, kw_only=True)
class ProbeLogps:
    """Log-probabilities of the same fixed tokens on both sides, under one version of the weights."""

    server: Float[Tensor, " N"]
    trainer: Float[Tensor, " N"]


def judge(now: ProbeLogps, confirmed: ProbeLogps | None, dtype: str) -> dict[str, float]:
    """Compare both sides of a probe, and their changes since the weights that were `confirmed` last.

    Returns:
        {name: value} of the figures `sampler/probe/<name>`

    Raises:
        StaleWeightsError: the server computes with other weights than the trainer's.
    """
    if not bool(now.server.isfinite().all()):
        raise StaleWeightsError("vLLM computes with broken weights: its log-probabilities are not finite")
    difference, moved, missed, followed = float((now.server - now.trainer).abs().max()), 0.0, 0.0, 1.0
    is_exact, over_rounding = dtype == "float32", inf
    if confirmed is not None:
        of_trainer, of_server = now.trainer - confirmed.trainer, now.server - confirmed.server
        moved, missed = _rms(of_trainer), _rms(of_server - of_trainer)
        followed = float((of_server @ of_trainer) / of_trainer.square().sum()) if moved else 1.0
        over_rounding = OVER_ROUNDING * _rms(confirmed.server - confirmed.trainer)
    is_conclusive, most_missed = is_exact or moved > over_rounding, MOST_RMS if is_exact else over_rounding
    differs = missed > most_missed or (is_exact and difference > MOST_DIFFERENCE)
    if followed < LEAST_FOLLOWED and (differs if is_exact else is_conclusive):
        raise StaleWeightsError(
            f"vLLM computes with old weights: its log-probabilities moved {followed:.2f} times as far as the trainer's"
        )
    if differs:
        raise StaleWeightsError(
            f"vLLM computes with other weights than the trainer's: a log-probability differs by {difference:.2g} nats, the "
            f"changes since the last weights by {missed:.2g} (at most {MOST_DIFFERENCE:g} in float32, and {most_missed:.2g})"
        )
    figures = {"difference": difference, "moved": moved, "missed": missed, "conclusive": float(is_conclusive)}
    return figures if confirmed is None else {**figures, "followed": followed}


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())
