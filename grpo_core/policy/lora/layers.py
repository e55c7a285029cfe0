"""Layers of a model with an adapter: PEFT's, which are trained, and frozen ones that share their base."""

import copy
from collections.abc import Iterator
from typing import cast

import torch
from jaxtyping import Float
from peft.tuners.lora import Linear as TrainedLinear
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_core.policy.linear import base_layer
from grpo_core.policy.lora.delta import Delta, LowRank

ADAPTER = "default"
"""Its name in PEFT."""


class FrozenLinear(nn.Module):
    """A linear layer and what an adapter adds to it. Its arithmetic is that of PEFT's layer."""

    def __init__(self, base_layer: nn.Linear, delta: Delta) -> None:
        """Share `base_layer`, whose weights do not change."""
        super().__init__()
        self.base_layer = base_layer
        self.delta = delta

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """Return the layer's output."""
        result: Tensor = self.base_layer(x)
        return (result + self.delta.applied(x)).to(result.dtype)


AdaptedLinear = TrainedLinear | FrozenLinear


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, AdaptedLinear]]:
    """Yield the layers with an adapter, by their names in the base."""
    for name, module in model.named_modules():
        if isinstance(module, TrainedLinear | FrozenLinear):
            yield name, module


def factors_of(layer: TrainedLinear) -> tuple[nn.Linear, nn.Linear]:
    """Return (A, B) of a layer that is trained."""
    return cast("nn.Linear", layer.lora_A[ADAPTER]), cast("nn.Linear", layer.lora_B[ADAPTER])


def scale_of(layer: TrainedLinear) -> float:
    """Return alpha / rank of a layer that is trained."""
    return float(cast("dict[str, float]", layer.scaling)[ADAPTER])


def delta_of(layer: AdaptedLinear) -> Delta:
    """Return what the adapter adds to a layer, in the layer's memory."""
    if isinstance(layer, FrozenLinear):
        return layer.delta
    a, b = factors_of(layer)
    return LowRank(a=a.weight.detach(), b=b.weight.detach(), scale=scale_of(layer))


@torch.no_grad()
def set_delta(layer: AdaptedLinear, delta: Delta) -> None:
    """Let a layer add a copy of `delta`; one that is trained keeps its memory and takes factors of its rank."""
    if isinstance(layer, FrozenLinear):
        layer.delta = delta.copy(layer.base_layer.weight.device)
        return
    assert isinstance(delta, LowRank), "an adapter that is trained has factors"
    for factor, value in zip(factors_of(layer), (delta.a, delta.b), strict=True):
        factor.weight.copy_(value)


def merged_weight(layer: nn.Module) -> Float[Tensor, "out in"]:
    """Return the sum of a layer's weight and what its adapter adds, in the adapter's precision."""
    assert isinstance(layer, TrainedLinear | FrozenLinear)
    delta = delta_of(layer).dense()
    return base_layer(layer).weight.detach().to(delta.dtype) + delta


def frozen_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy that shares all of a model but its adapters, of which it has copies."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for _, layer in adapted_layers(model):
        base = base_layer(layer)
        shared[id(layer)] = FrozenLinear(base, delta_of(layer).copy(base.weight.device))
    return copy.deepcopy(model, shared).eval()
