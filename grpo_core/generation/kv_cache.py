"""A key-value cache that grows in place: a token is written behind the others, and the others are not copied for it.

Nor are they cast: keys come in fp32 from the rotary embedding, and under autocast attention would round all of them for every
token. Here each is rounded once, when it is stored, to the same value.
"""

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicCache, DynamicLayer

LEAST_ROOM = 64
"""Tokens; a full buffer grows by this or by a quarter, whichever is more, and never beyond the tokens that can come."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """One layer of a cache: transformers' `DynamicLayer` in a buffer with room for the tokens to come.

    `keys` and `values` are the part of their buffers that is filled, so whatever reads them sees the same tensors.
    """

    def __init__(self, filled: DynamicLayer, dtype: torch.dtype, most_tokens: int) -> None:
        """Take over what a layer holds, and keep it in `dtype`; at most so many tokens will come."""
        super().__init__()
        self.keys, self.values = filled.keys.to(dtype), filled.values.to(dtype)
        self.dtype, self.device, self.is_initialized = dtype, self.keys.device, True
        self._buffers: list[Tensor] = [self.keys, self.values]
        self._most = self.keys.shape[-2] + most_tokens

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Append the keys and values [B, H, t, D] of t tokens; return those of all tokens."""
        length = self.keys.shape[-2]
        total = length + key_states.shape[-2]
        if total > self._buffers[0].shape[-2]:
            room = max(total, min(self._most, total + max(LEAST_ROOM, total // 4)))
            self._buffers = [_with_room(tensor, room) for tensor in (self.keys, self.values)]
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, length:total] = new
        self._show(total)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        length = self.keys.shape[-2]
        self._buffers = [_rows(buffer, indices, length) for buffer in self._buffers]
        self._show(length)

    def _show(self, length: int) -> None:
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)


def grow_in_place(cache: DynamicCache, dtype: torch.dtype, most_tokens: int) -> None:
    """Let the layers of a filled cache grow in place from now on; those of other kinds (a sliding window) stay as they are.

    It is for decoding without gradient: what is returned for one token shares its memory with what is returned for the next.

    Args:
        cache: of the prompts, a row for each completion.
        dtype: in which attention is computed.
        most_tokens: that will come.
    """
    for number, layer in enumerate(cache.layers):  # one after the other: two caches of all layers would be twice the memory
        if _is_plain(layer):
            cache.layers[number] = GrowingLayer(layer, dtype, most_tokens)


def _is_plain(layer: CacheLayerMixin) -> bool:
    return type(layer) is DynamicLayer and layer.get_seq_length() > 0


def _with_room(tensor: Tensor, room: int) -> Tensor:
    """Return a buffer of `room` tokens that begins with those of `tensor`."""
    buffer = torch.empty(*tensor.shape[:-2], room, tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
    buffer[:, :, : tensor.shape[-2]] = tensor
    return buffer


def _rows(buffer: Tensor, indices: Tensor, length: int) -> Tensor:
    """Return a buffer of these rows with as much room; what is not filled is not copied."""
    chosen = buffer.new_empty(len(indices), *buffer.shape[1:])
    torch.index_select(buffer[:, :, :length], 0, indices, out=chosen[:, :, :length])
    return chosen
