"""Rows continued a token at a time after their prompts, in two ways: as transformers runs the model, and lean.

Lean are decoder layers of the Llama family with half of the operations a token that transformers needs beside the matrix
products. One token of each row goes through a layer as

    h, v = rms(x) Wqk,v;  q, k = rotate(h);  x += attention(q, cache + k, v) Wo
    x += (silu(g) u) Wdown  where  g, u = rms(x) Wgate,up

with one product where transformers has three and two, one rotation for queries and keys, and attention (`caches.py`) whose
queries are the heads that share a key: neither keys nor masks are copied for each head, layer and token. On an accelerator each
operation is a launch, which takes the host as long as the device needs for a small one; nothing here waits for the device.
Rounding is that of the model under `compute_in`: residuals, norms and rotations in fp32, products, attention and activations in
the compute dtype.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from grpo_core.policy.fast.caches import Queries, grow_in_place, seen_by_rows
from grpo_core.policy.fast.products import Products, joined_products, packed_product
from grpo_core.policy.forward import (
    EncodedPrefix,
    States,
    continue_prefix,
    vocabulary_head,
    without_autocast,
)
from grpo_core.policy.lora.delta import base_layer
from grpo_core.policy.outline import LEAST_SHARED
from grpo_core.policy.vision import decoder_of

Product = Callable[[Tensor], Tensor]


class PlainDecoder:
    """Rows after an expanded prefix, continued as transformers runs the model, while its weights stay the same."""

    def __init__(
        self, model: PreTrainedModel, dtype: torch.dtype, prompts: EncodedPrefix, of_row: Int[Tensor, " B"], most_tokens: int
    ) -> None:
        """Continue prompts, whose cache is taken over, by rows of at most so many tokens.

        Args:
            model: whose weights stay the same.
            dtype: of keys and values.
            prompts: P of them.
            of_row: which of them each row completes.
            most_tokens: that will come.
        """
        prefix = prompts.keep(of_row)
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
        attend: Callable[[Queries, States, States, float], Queries],
    ) -> None:
        """Add what the layer does to `x`, in place; `attend` is the layer's attention of `caches.py`."""
        qk, value = self.qk_and_v(self.before_attention(x).to(self.dtype))
        qk = qk.view(len(x), self.heads + self.kv_heads, -1)
        if self.of_heads is not None:
            parts = zip(self.of_heads, torch.split(qk, [self.heads, self.kv_heads], dim=1), strict=True)
            qk = torch.cat([norm(part) for norm, part in parts], dim=1)
        query, key = torch.split(_rotated(qk, *rotation).to(self.dtype), [self.heads, self.kv_heads], dim=1)
        queries = query.view(len(x), self.kv_heads, self.heads // self.kv_heads, -1)
        seen = attend(queries, key.unsqueeze(2), value.view(len(x), self.kv_heads, 1, -1), self.scale)
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

    def __init__(
        self,
        decoding: LeanDecoding,
        prompts: EncodedPrefix,
        of_row: Int[Tensor, " B"],
        most_tokens: int,
        least_shared: float = LEAST_SHARED,
    ) -> None:
        """See `PlainDecoder`, and `seen_by_rows`."""
        self.logits = decoding.logits
        self._decoding = decoding
        self._embed: nn.Module = decoding.model.get_input_embeddings()
        positions = prompts.mask.sum(dim=1) + (0 if prompts.offset is None else prompts.offset.squeeze(1))
        self._positions = positions[of_row]
        self._cosine, self._sine = _rotations(decoding.model, int(positions.max()) + most_tokens)
        self._seen = seen_by_rows(prompts, of_row, decoding.dtype, most_tokens, least_shared)

    def run(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B H"]:
        """See `PlainDecoder.run`."""
        decoding, rotation = self._decoding, (self._cosine[self._positions], self._sine[self._positions])
        with torch.autocast(tokens.device.type, enabled=False):
            x: Tensor = self._embed(tokens).clone()
            for number, layer in enumerate(decoding.layers):
                layer.run(x, rotation, partial(self._seen.attend, number))
            self._positions = self._positions + 1
            return decoding.last_norm(x)

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """See `PlainDecoder.keep`."""
        self._seen.keep(rows)
        self._positions = self._positions[rows]


def _rotations(model: PreTrainedModel, length: int) -> tuple[Float[Tensor, "L 1 d"], Float[Tensor, "L 1 d"]]:
    """Return cosines and signed sines of all positions below `length`."""
    positions = torch.arange(length, device=model.device).unsqueeze(0)
    cosine, sine = decoder_of(model).rotary_emb(model.get_input_embeddings().weight[:1], positions)
    half = sine.shape[-1] // 2
    return cosine[0].unsqueeze(1), torch.cat([-sine[0, :, :half], sine[0, :, half:]], dim=-1).unsqueeze(1)
