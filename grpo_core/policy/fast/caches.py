"""Keys and values that rows see while they are continued a token at a time, and attention to them.

Each row has a copy of its prompt's, before its own; or, on a CPU and behind long prompts, those of a prompt are there once for
all rows that complete it. A row's softmax over both parts is then two attentions joined by their normalisers, as in
`grouped.py`; the queries of a prompt's rows meet its keys in one product (as in Hydragen, arXiv:2402.05099). Each token reads
all keys: 16 rows behind one prompt of 512 tokens are sampled in three quarters of the time, and keep a sixth.
"""

from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import DynamicCache, DynamicLayer

from grpo_core.policy.fast.grouped import flash_attention, joined, ranks
from grpo_core.policy.forward import AllStates, EncodedPrefix, States, hiding

Queries = Float[Tensor, "B k s d"]
"""Of one token of each row, k key-value heads and s heads that share them; as large is what they see."""
LEAST_ROOM = 64
"""Tokens; a full buffer grows by this or by a quarter, whichever is more, and never beyond the tokens that can come."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """One layer of a cache: transformers' `DynamicLayer` in a buffer with room for the tokens to come.

    `keys` and `values` are the part of their buffers that is filled, so whatever reads them sees the same tensors.
    """

    def __init__(self, keys: AllStates, values: AllStates, dtype: torch.dtype, most_tokens: int) -> None:
        """Take over keys and values, and keep them in `dtype`; at most so many tokens will come."""
        super().__init__()
        self.keys, self.values = keys.to(dtype), values.to(dtype)
        self.dtype, self.device, self.is_initialized = dtype, self.keys.device, True
        self._buffers: list[Tensor] = [self.keys, self.values]
        self._most = self.keys.shape[-2] + most_tokens

    def update(self, key_states: States, value_states: States, *_: object, **__: object) -> tuple[AllStates, AllStates]:
        """Append the keys and values of some tokens; return those of all tokens."""
        length = self.keys.shape[-2]
        total = length + key_states.shape[-2]
        if total > self._buffers[0].shape[-2]:
            room = max(total, min(self._most, total + max(LEAST_ROOM, total // 4)))
            self._buffers = [functional.pad(tensor, (0, 0, 0, room - length)) for tensor in (self.keys, self.values)]
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, length:total] = new
        self.keys, self.values = (buffer[:, :, :total] for buffer in self._buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: Int[Tensor, " b"]) -> None:
        """Keep these rows."""
        length = self.keys.shape[-2]
        self._buffers = [torch.index_select(buffer, 0, indices) for buffer in self._buffers]
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
        if type(layer) is DynamicLayer and layer.get_seq_length() > 0:
            cache.layers[number] = GrowingLayer(layer.keys, layer.values, dtype, most_tokens)


class SeenByRows(Protocol):
    """What the rows of a batch have seen so far, in all layers."""

    def attend(self, number: int, query: Queries, key: States, value: States, scale: float) -> Queries:
        """Append keys and values of a token [B, k, 1, d] to a layer's; return what the queries see of all."""

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Continue these rows alone."""


def seen_by_rows(
    prompts: EncodedPrefix, of_row: Int[Tensor, " B"], dtype: torch.dtype, most_tokens: int, least_shared: float
) -> SeenByRows:
    """Return what rows have seen that complete some prompts, whose cache is taken over.

    Args:
        prompts: P of them.
        of_row: which of them each row completes.
        dtype: in which attention is computed.
        most_tokens: that will come.
        least_shared: tokens of the longest prompt from which several rows share one on a CPU.
    """
    num_prompts, longest = prompts.mask.shape
    shares = of_row.device.type == "cpu" and len(of_row) > num_prompts and longest >= least_shared
    return (SharedPrompts if shares else CopiedPrompts)(prompts, of_row, dtype, most_tokens)


class CopiedPrompts:
    """Each row has its prompt's keys and values before its own."""

    def __init__(self, prompts: EncodedPrefix, of_row: Int[Tensor, " B"], dtype: torch.dtype, most_tokens: int) -> None:
        """See `seen_by_rows`."""
        prefix = prompts.keep(of_row)
        grow_in_place(prefix.cache, dtype, most_tokens)
        self._cache = prefix.cache
        self._bias = hiding(functional.pad(prefix.mask, (0, most_tokens), value=True), dtype)

    def attend(self, number: int, query: Queries, key: States, value: States, scale: float) -> Queries:
        """See `SeenByRows.attend`."""
        keys, values = self._cache.layers[number].update(key, value)
        mask = None if self._bias is None else self._bias[..., : keys.shape[2]].expand(-1, 1, query.shape[2], -1)
        if query.device.type == "cpu":  # its kernel by name: torch's choice would repeat the keys for each head
            seen: Tensor = flash_attention(query, keys, values, 0.0, False, attn_mask=mask, scale=scale)[0]
            return seen
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """See `SeenByRows.keep`."""
        self._cache.batch_select_indices(rows)
        self._bias = None if self._bias is None else self._bias[rows]


class SharedPrompts:
    """The keys and values of each prompt are there once, whichever rows complete it; a row has its own behind them."""

    def __init__(self, prompts: EncodedPrefix, of_row: Int[Tensor, " B"], dtype: torch.dtype, most_tokens: int) -> None:
        """See `seen_by_rows`."""
        self._prompts = [(layer.keys.to(dtype), layer.values.to(dtype)) for layer in prompts.cache.layers]
        self._bias = hiding(prompts.mask, dtype)
        self._own = list[GrowingLayer]()
        for keys, _ in self._prompts:
            none = keys.new_empty(len(of_row), keys.shape[1], 0, keys.shape[3])
            self._own.append(GrowingLayer(none, none, dtype, most_tokens))
        self._place(of_row)

    def _place(self, of_row: Int[Tensor, " B"]) -> None:
        """Lay out rows in P x g cells, by their prompts; an empty cell repeats the first row, and nobody reads it."""
        counts = torch.bincount(of_row, minlength=len(self._prompts[0][0]))
        group = int(counts.max())
        self._of_row, self._cells = of_row, of_row * group + ranks(of_row, counts)
        self._rows = torch.zeros(len(counts) * group, dtype=torch.long).index_copy_(0, self._cells, torch.arange(len(of_row)))

    def attend(self, number: int, query: Queries, key: States, value: States, scale: float) -> Queries:
        """See `SeenByRows.attend`."""
        own, own_sum = flash_attention(query, *self._own[number].update(key, value), 0.0, False, scale=scale)
        keys, values = self._prompts[number]
        num_prompts, (_, *kind) = len(keys), query.shape
        queries = query[self._rows].view(num_prompts, -1, *kind).transpose(1, 2).flatten(2, 3)  # [P, k, g s, d]
        mask = None if self._bias is None else self._bias.expand(-1, 1, queries.shape[2], -1)
        prompt, prompt_sum = flash_attention(queries, keys, values, 0.0, False, attn_mask=mask, scale=scale)
        prompt, prompt_sum = (self._by_row(states, kind[1]) for states in (prompt, prompt_sum.unsqueeze(-1)))
        return joined(prompt, prompt_sum, own, own_sum.unsqueeze(-1))[0].to(query.dtype)

    def _by_row(self, states: Float[Tensor, "P k Q n"], sharing: int) -> Float[Tensor, "B k s n"]:
        num_prompts, kv_heads, _, width = states.shape
        cells = states.view(num_prompts, kv_heads, -1, sharing, width).transpose(1, 2).flatten(0, 1)
        return cells[self._cells]

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """See `SeenByRows.keep`."""
        for layer in self._own:
            layer.batch_select_indices(rows)
        self._place(self._of_row[rows])
