"""Linear layers of a model as they act: one with an adapter is one layer, whose weight is a sum."""

from collections.abc import Iterator
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn


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


def linear_weight(module: nn.Module) -> Float[Tensor, "out in"]:
    """Return the weight that a linear layer acts with: of one with an adapter, the sum, in the adapter's precision."""
    if has_adapter(module):
        from grpo_core.policy.lora.layers import merged_weight  # imported already, with PEFT: it has made the layer

        return merged_weight(module)
    return base_layer(module).weight.detach()


def linear_bias(module: nn.Module) -> Float[Tensor, " out"] | None:
    """Return the bias of a linear layer; an adapter has none of its own."""
    return base_layer(module).bias
