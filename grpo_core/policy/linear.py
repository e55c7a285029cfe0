"""Linear layers of a model as they act: one with an adapter is one layer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from grpo_core.policy.lora.delta import Delta

if TYPE_CHECKING:
    from grpo_core.policy.lora.layers import AdaptedLinear


def linear_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield linear layers, not those that a layer with an adapter consists of."""
    parts: set[nn.Module] = set()
    for module in model.modules():  # a layer comes before its parts
        if has_adapter(module):
            parts |= {*module.modules()}
            yield module
        elif type(module) is nn.Linear and module not in parts:
            yield module


def has_adapter(module: nn.Module) -> bool:
    """Return whether a module is a linear layer with an adapter: PEFT's, or a frozen one."""
    return hasattr(module, "base_layer")


def base_layer(module: nn.Module) -> nn.Linear:
    """Return a linear layer without its adapter."""
    return cast("nn.Linear", module.base_layer if has_adapter(module) else module)


def acting_weight(module: nn.Module, dtype: torch.dtype | None) -> tuple[Float[Tensor, "out in"], Delta | None]:
    """Return the matrix that a linear layer multiplies with, and what its adapter adds beside it.

    In the adapter's own precision the matrix is the sum, and nothing is beside it. In a coarser one the sum would be rounded:
    of an adapter that adds less than half of a weight's last place nothing would be left.

    Args:
        module: a linear layer, with an adapter or without.
        dtype: of the matrix; None = its own, that of an adapter.
    """
    weight = base_layer(module).weight.detach()
    delta = None
    if has_adapter(module):
        from grpo_core.policy.lora.layers import delta_of, merged_weight  # imported already, with PEFT: it has made the layer

        delta = delta_of(cast("AdaptedLinear", module))
        if dtype in (None, delta.dtype):
            return merged_weight(module), None
    return weight.to(dtype or weight.dtype), delta


def linear_bias(module: nn.Module) -> Float[Tensor, " out"] | None:
    """Return the bias of a linear layer; an adapter has none of its own."""
    return base_layer(module).bias
