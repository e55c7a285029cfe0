"""Linear layers of a model as they act, with an adapter or without: PEFT's, which are trained, and frozen ones on one base.

PEFT itself is not needed, whose import takes a second: it has made its layers before.
"""

import copy
from collections.abc import Iterator
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

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


def has_adapter(module: nn.Module) -> bool:
    """Return whether a module is a linear layer with an adapter: PEFT's, or a frozen one."""
    return hasattr(module, "base_layer")


def base_layer(module: nn.Module) -> nn.Linear:
    """Return a linear layer without its adapter."""
    return cast("nn.Linear", module.base_layer if has_adapter(module) else module)


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the layers with an adapter, by their names in the base."""
    yield from ((name, module) for name, module in model.named_modules() if has_adapter(module))


def linear_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield linear layers, not those that a layer with an adapter consists of."""
    parts: set[nn.Module] = set()
    for module in model.modules():  # a layer comes before its parts
        if has_adapter(module):
            parts |= {*module.modules()}
            yield module
        elif type(module) is nn.Linear and module not in parts:
            yield module


def factors_of(layer: Any) -> tuple[nn.Linear, nn.Linear]:
    """Return (A, B) of a layer that is trained."""
    return layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]


def delta_of(layer: Any) -> Delta:
    """Return what the adapter adds to a layer, in the layer's memory."""
    if isinstance(layer, FrozenLinear):
        return layer.delta
    a, b = factors_of(layer)
    return LowRank(a=a.weight.detach(), b=b.weight.detach(), scale=float(layer.scaling[ADAPTER]))


@torch.no_grad()
def set_delta(layer: Any, delta: Delta) -> None:
    """Let a layer add a copy of `delta`; one that is trained keeps its memory and takes factors of its rank."""
    if isinstance(layer, FrozenLinear):
        layer.delta = delta.copy(layer.base_layer.weight.device)
        return
    assert isinstance(delta, LowRank), "an adapter that is trained has factors"
    for factor, value in zip(factors_of(layer), (delta.a, delta.b), strict=True):
        factor.weight.copy_(value)


def merged_weight(layer: Any) -> Float[Tensor, "out in"]:
    """Return the sum of a layer's weight and what its adapter adds, in the adapter's precision."""
    delta = delta_of(layer).dense()
    return base_layer(layer).weight.detach().to(delta.dtype) + delta


def acting_weight(module: nn.Module, dtype: torch.dtype | None) -> tuple[Float[Tensor, "out in"], Delta | None]:
    """Return the matrix that a linear layer multiplies with, and what its adapter adds beside it.

    In the adapter's own precision the matrix is the sum, and nothing is beside it. In a coarser one the sum would be rounded:
    of an adapter that adds less than half of a weight's last place nothing would be left.

    Args:
        module: a linear layer, with an adapter or without.
        dtype: of the matrix; None = its own, that of an adapter.
    """
    weight = base_layer(module).weight.detach()
    delta = delta_of(module) if has_adapter(module) else None
    if delta is not None and dtype in (None, delta.dtype):
        return merged_weight(module), None
    return weight.to(dtype or weight.dtype), delta


def frozen_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy that shares all of a model but its adapters, of which it has copies."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for _, layer in adapted_layers(model):
        base = base_layer(layer)
        shared[id(layer)] = FrozenLinear(base, delta_of(layer).copy(base.weight.device))
    return copy.deepcopy(model, shared).eval()
