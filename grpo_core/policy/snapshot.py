"""Copies of what a training changes, from which a checkpoint is written while training goes on."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_core.policy.trainable import Contents
from grpo_core.policy.weights import place_of

CHANGING = ("weights", "reference", "optimizer", "schedule")
"""What of the contents the next step may change; the initial policy never changes."""


class Snapshot:
    """One copy at a time, in CPU memory that is kept for the next one: fresh pages cost many times what copying costs."""

    def __init__(self) -> None:
        """Begin without memory."""
        self._newest: Mapping[str, Any] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no memory is held yet."""
        return not self._newest

    def take(self, contents: Contents) -> Contents:
        """Return a copy of all that the next step may change. The copy before it is lost."""
        made: dict[Any, Tensor] = {}
        self._newest = {name: _copied(getattr(contents, name), self._newest.get(name), made) for name in CHANGING}
        return replace(contents, **self._newest)


def _copied(value: Any, earlier: Any, made: dict[Any, Tensor]) -> Any:
    """Copy tensors wherever they are nested; two names of the same weights stay two names of the same weights.

    Args:
        value: what is copied.
        earlier: an earlier copy of it, whose memory is used where it fits; None without one.
        made: what was copied so far, by its place in memory.
    """
    if isinstance(value, Tensor):
        place = place_of(value)
        if place not in made:
            made[place] = _memory_for(value, earlier).copy_(value.detach())
        return made[place]
    if isinstance(value, Mapping):
        before = earlier if isinstance(earlier, Mapping) else {}
        return {key: _copied(entry, before.get(key), made) for key, entry in value.items()}
    return copy.deepcopy(value)


def _memory_for(tensor: Tensor, earlier: Any) -> Tensor:
    fits = isinstance(earlier, Tensor) and (earlier.dtype, earlier.shape) == (tensor.dtype, tensor.shape)
    return earlier if fits else torch.empty_like(tensor, device="cpu", requires_grad=False)
