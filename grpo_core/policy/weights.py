"""Weights by their names; tied weights are one tensor with several names."""

from jaxtyping import Float, Shaped
from torch import Tensor, nn, split

from grpo_core.policy.weights_file import Weights

PIECE = 2**18
"""Weights whose squared differences are summed in their own precision; sums of pieces are summed in double."""


def place_of(tensor: Shaped[Tensor, "..."]) -> tuple[int, tuple[int, ...]]:
    """Return where a tensor lies: the same for two names of the same weights."""
    return tensor.data_ptr(), tuple(tensor.shape)


def first_names(weights: Weights) -> Weights:
    """Return each tensor once, under its first name: tied weights are one tensor, and safetensors refuses to store it twice."""
    names: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, tensor in weights.items():
        names.setdefault(place_of(tensor), name)
    return {name: weights[name] for name in names.values()}


def named_weights(model: nn.Module) -> Weights:
    """Return each parameter once: tied weights are one tensor, and safetensors refuses to store it twice."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def squared_difference(one: Float[Tensor, "..."], other: Float[Tensor, "..."]) -> float:
    """Sum the squares piece by piece, which stays in the processor's cache: the weights are read once, nothing is written.

    Where the two are on different devices, they meet on the first one's.
    """
    pieces = zip(split(one.flatten(), PIECE), split(other.to(one.device).flatten(), PIECE), strict=True)
    return sum(float((difference := first - second).dot(difference)) for first, second in pieces)
