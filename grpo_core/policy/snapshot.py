"""Copies of what a training changes, from which a checkpoint is written while training goes on.

The memory of a copy is kept for the next one: the pages of fresh memory cost many times what copying into old ones does.
"""

import copy
import ctypes
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from grpo_core.policy.trainable import Contents
from grpo_core.policy.weights import place_of

Layout = tuple[torch.dtype, torch.Size, tuple[int, ...]]


class SnapshotMemory:
    """CPU memory for one copy at a time."""

    def __init__(self) -> None:
        """Begin without any."""
        self._buffers: defaultdict[Layout, list[Tensor]] = defaultdict(list)

    @property
    def is_empty(self) -> bool:
        """Whether no memory is held yet."""
        return not self._buffers

    def reserve(self, tensors: Iterable[Shaped[Tensor, "..."]], is_over: Callable[[], bool] = lambda: False) -> None:
        """Take memory for a copy of some tensors; of those that are left once `is_over`, none.

        Not torch, but the C library writes to its pages first: torch would make threads of its own for a thread that calls
        this. Once there are more of them than cores, OpenMP no longer lets those of the training wait actively for their next
        product, and every step takes 1.4 times as long.
        """
        for tensor in itertools.takewhile(lambda _: not is_over(), tensors):
            buffer = torch.empty_like(tensor, device="cpu", requires_grad=False)
            ctypes.memset(buffer.data_ptr(), 0, buffer.untyped_storage().nbytes())
            self._buffers[_layout(tensor)].append(buffer)

    def copy(self, contents: Contents) -> Contents:
        """Return a copy of all that the next step may change; the initial policy never changes. An earlier copy is lost.

        Memory of another layout is given back: an averaged reference with an adapter has a larger rank than the last one.
        """
        copies = _Copies(self._buffers)
        copied = replace(
            contents,
            weights=copies.of(contents.weights),
            reference=copies.of(contents.reference),
            optimizer=copies.of(contents.optimizer),
            schedule=copies.of(contents.schedule),
        )
        for layout in self._buffers.keys() - copies.layouts:
            del self._buffers[layout]
        return copied


class _Copies:
    """Copies tensors wherever they are nested; two names of the same weights stay two names of the same weights."""

    def __init__(self, buffers: defaultdict[Layout, list[Tensor]]) -> None:
        self._buffers = buffers
        self._unused = {layout: list(kept) for layout, kept in buffers.items()}
        self._made: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self.layouts: set[Layout] = set()
        """Of what was copied."""

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._made[place_of(value)] if place_of(value) in self._made else self._copy(value)
        if isinstance(value, Mapping):
            return {key: self.of(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.of(entry) for entry in value]
        return copy.deepcopy(value)

    def _copy(self, tensor: Tensor) -> Tensor:
        self.layouts.add(_layout(tensor))
        if unused := self._unused.get(_layout(tensor)):
            buffer = unused.pop()
        else:
            buffer = torch.empty_like(tensor, device="cpu", requires_grad=False)
            self._buffers[_layout(tensor)].append(buffer)
        made = self._made[place_of(tensor)] = buffer.copy_(tensor.detach())
        return made


def _layout(tensor: Tensor) -> Layout:
    return tensor.dtype, tensor.shape, tensor.stride()
