"""Rows continued a token at a time after their prompts, in two ways: as transformers runs the model, and lean.

Lean are decoder layers of the Llama family with half of the operations a token that transformers needs beside the matrix
products. One token of each row goes through a layer as

    h, v = rms(x) Wqk,v;  q, k = rotate(h);  x += attention(q, cache + k, v) Wo
    x += (silu(g) u) Wdown  where  g, u = rms(x) Wgate,up

with one product where transformers has three and two, one rotation for queries and keys, and attention whose queries are the
heads that share a key: neither keys nor masks are copied for each head, layer and token. On an accelerator each operation is
a launch, which takes the host as long as the device needs for a small one; nothing here waits for the device. Rounding is
that of the model under `compute_in`: residuals, norms and rotations in fp32, products, attention and activations in the
compute dtype.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer

from grpo_core.policy.fast.grouped import flash_attention
from grpo_core.policy.fast.products import Products, joined_products, packed_product
from grpo_core.policy.forward import (
    AllStates,
    EncodedPrefix,
    States,
    continue_prefix,
    hiding,
    vocabulary_head,
    without_autocast,
)
from grpo_core.policy.lora.delta import base_layer
from grpo_core.policy.vision import decoder_of

Product = Callable[[Tensor], Tensor]
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
            cache.layers[number] = GrowingLayer(layer, dtype, most_tokens)


class PlainDecoder:
    """Rows after an expanded prefix, continued as transformers runs the model, while its weights stay the same."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, prefix: EncodedPrefix, most_tokens: int) -> None:
        """Continue the rows of an expanded prefix, whose cache is taken over, by at most so many tokens.

        `dtype` is that of keys and values.
        """
        grow_in_place(prefix.cache, dtype, most_tokens)
        self.logits = vocabulary_head(model)
        """The vocabulary head, in fp32."""
        self._model, self._prefix, self._seen = model, prefix, prefix.mask

    def run(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B H"]:
        """Append a token to each row; return the hidden states that predict the next one."""
        self._seen = torch.cat([self._seen, self._seen.new_ones(len(tokens), 1)], dim=1)
        return continue_prefix(self._model, self._prefix, tokens.unsqueeze(1), self._seen)[:, -1]

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Continue these rows alone."""
        self._seen, self._prefix = self._seen[rows], self._prefix.keep(rows)


def _norm(module: Any) -> Product:
    """Return one of transformers' RMSNorms over the last dimension, in the precision of its weights."""
    weight, eps = module.weight.detach(), module.variance_epsilon
    return lambda states: functional.rms_norm(states.to(weight.dtype), weight.shape, weight, eps)


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """Weights of a layer and what it does to one token of each row."""

    heads: int
    kv_heads: int
    scale: float
    dtype: torch.dtype
    before_attention: Product
    before_mlp: Product
    of_heads: tuple[Product, Product] | None
    """Norms of each query and key (Qwen3)."""
    qk_and_v: Products
    out: Products
    gate_and_up: Products
    down: Products

    def run(
        self,
        x: Float[Tensor, "B H"],
        rotation: tuple[Float[Tensor, "B 1 d"], Float[Tensor, "B 1 d"]],
        cache: GrowingLayer,
        bias: Float[Tensor, "B 1 1 most"] | None,
    ) -> None:
        """Add what the layer does to `x`, in place."""
        qk, value = self.qk_and_v(self.before_attention(x).to(self.dtype))
        qk = qk.view(len(x), self.heads + self.kv_heads, -1)
        if self.of_heads is not None:
            parts = zip(self.of_heads, torch.split(qk, [self.heads, self.kv_heads], dim=1), strict=True)
            qk = torch.cat([norm(part) for norm, part in parts], dim=1)
        query, key = torch.split(_rotated(qk, *rotation).to(self.dtype), [self.heads, self.kv_heads], dim=1)
        keys, values = cache.update(key.unsqueeze(2), value.view(len(x), self.kv_heads, 1, -1))
        folded = query.view(len(x), self.kv_heads, self.heads // self.kv_heads, -1)
        mask = None if bias is None else bias[..., : keys.shape[2]].expand(-1, 1, folded.shape[2], -1)
        seen = _attend(folded, keys, values, mask, self.scale)
        (out,) = self.out(seen.reshape(len(x), -1))
        x.add_(out)
        gate, up = self.gate_and_up(self.before_mlp(x).to(self.dtype))
        (down,) = self.down(functional.silu(gate).mul_(up))
        x.add_(down)


def _rotated(
    states: Float[Tensor, "B n d"], cosine: Float[Tensor, "B 1 d"], sine: Float[Tensor, "B 1 d"]
) -> Float[Tensor, "B n d"]:
    """Apply rotary positions; the sign of the second half's rotation is in the sine."""
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, dims=-1), sine)


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    if query.device.type == "cpu":  # its kernel by name: torch's choice would repeat the keys for each head
        seen: Tensor = flash_attention(query, keys, values, 0.0, False, attn_mask=mask, scale=scale)[0]
        return seen
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class LeanDecoding:
    """The weights of a model, prepared to continue rows while they stay the same."""

    model: PreTrainedModel
    dtype: torch.dtype
    layers: Sequence[Layer]
    last_norm: Product
    logits: Product
    """The vocabulary head, in fp32."""

    @classmethod
    def of(cls, model: PreTrainedModel, dtype: torch.dtype, *, packed: bool) -> "LeanDecoding":
        """Take the weights of a model as they are now.

        Args:
            model: one that `path.why_not_lean` has found fit.
            dtype: of the products of its layers.
            packed: whether large matrices are packed (`products.py`).
        """

        def product(*parts: Sequence[nn.Linear]) -> Products:
            return joined_products(parts, dtype, packed=packed)

        head, inner = model.get_output_embeddings(), decoder_of(model)
        return cls(
            model=model,
            dtype=dtype,
            layers=[_layer(module, product, dtype) for module in inner.layers],
            last_norm=_norm(inner.norm),
            logits=without_autocast(packed_product(head.weight.detach(), head.bias, packed=packed)),
        )


def _layer(module: Any, product: Callable[..., Products], dtype: torch.dtype) -> Layer:
    attention, mlp = module.self_attn, module.mlp
    return Layer(
        heads=base_layer(attention.q_proj).out_features // attention.head_dim,
        kv_heads=base_layer(attention.k_proj).out_features // attention.head_dim,
        scale=attention.scaling,
        dtype=dtype,
        before_attention=_norm(module.input_layernorm),
        before_mlp=_norm(module.post_attention_layernorm),
        of_heads=(_norm(attention.q_norm), _norm(attention.k_norm)) if hasattr(attention, "q_norm") else None,
        qk_and_v=product([attention.q_proj, attention.k_proj], [attention.v_proj]),
        out=product([attention.o_proj]),
        gate_and_up=product([mlp.gate_proj], [mlp.up_proj]),
        down=product([mlp.down_proj]),
    )


class LeanDecoder:
    """See `PlainDecoder`."""

    def __init__(self, decoding: LeanDecoding, prefix: EncodedPrefix, most_tokens: int) -> None:
        """See `PlainDecoder`."""
        grow_in_place(prefix.cache, decoding.dtype, most_tokens)
        self.logits = decoding.logits
        self._decoding, self._cache = decoding, prefix.cache
        self._embed: nn.Module = decoding.model.get_input_embeddings()
        self._positions = prefix.mask.sum(dim=1) + (0 if prefix.offset is None else prefix.offset.squeeze(1))
        self._cosine, self._sine = _rotations(decoding.model, int(self._positions.max()) + most_tokens)
        self._bias = hiding(functional.pad(prefix.mask, (0, most_tokens), value=True), decoding.dtype)

    def run(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B H"]:
        """See `PlainDecoder.run`."""
        decoding, rotation = self._decoding, (self._cosine[self._positions], self._sine[self._positions])
        with torch.autocast(tokens.device.type, enabled=False):
            x: Tensor = self._embed(tokens).clone()
            for layer, cache in zip(decoding.layers, self._cache.layers, strict=True):
                layer.run(x, rotation, cache, self._bias)
            self._positions = self._positions + 1
            return decoding.last_norm(x)

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """See `PlainDecoder.keep`."""
        self._cache.batch_select_indices(rows)
        self._positions = self._positions[rows]
        self._bias = None if self._bias is None else self._bias[rows]


def _rotations(model: PreTrainedModel, length: int) -> tuple[Float[Tensor, "L 1 d"], Float[Tensor, "L 1 d"]]:
    """Return cosines and signed sines of all positions below `length`."""
    positions = torch.arange(length, device=model.device).unsqueeze(0)
    cosine, sine = decoder_of(model).rotary_emb(model.get_input_embeddings().weight[:1], positions)
    half = sine.shape[-1] // 2
    return cosine[0].unsqueeze(1), torch.cat([-sine[0, :, :half], sine[0, :, half:]], dim=-1).unsqueeze(1)
