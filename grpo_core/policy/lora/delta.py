"""What an adapter adds to a matrix, and averages of it.

    W_policy = W + s B A            A: r x in, B: out x r, s = alpha / rank (Hu et al., arXiv:2106.09685, section 4.1)
    D_ref <- m s B A + (1 - m) D_ref

The average of two products is no product of averages: averaged factors would give m^2 BA + m (1 - m) (B A_ref + B_ref A) + ...
But a sum of low-rank terms is low-rank again, with the factors side by side:

    m s B A + (1 - m) B_ref A_ref = [m s B, (1 - m) B_ref] [A; A_ref]

That is exact, and its rank grows with every sync. Where it takes as much memory as the matrix itself, the matrix is kept.
Where it exceeds a bound, the smallest singular values are dropped: the nearest matrix of that rank (Eckart and Young, 1936).
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from grpo_core.policy.weights import squared_difference


@dataclass(frozen=True, kw_only=True, eq=False)
class LowRank:
    """scale x b a."""

    a: Float[Tensor, "r in"]
    b: Float[Tensor, "out r"]
    scale: float = 1.0

    @property
    def dtype(self) -> torch.dtype:
        """Of both factors."""
        return self.a.dtype

    def applied(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """Return what it adds for inputs `x`, by the operations of PEFT's layer in their order."""
        return functional.linear(functional.linear(x.to(self.a.dtype), self.a), self.b) * self.scale

    def dense(self) -> Float[Tensor, "out in"]:
        """Return the matrix."""
        return (self.b @ self.a) * self.scale

    def factors(self) -> tuple[Float[Tensor, "r in"], Float[Tensor, "out r"]]:
        """Return two factors without a scale."""
        return self.a, self.b * self.scale

    def copy(self, device: torch.device) -> "LowRank":
        """Return the same in memory of its own, without gradient."""
        a, b = (factor.detach().to(device, copy=True) for factor in (self.a, self.b))
        return LowRank(a=a, b=b, scale=self.scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class Full:
    """A matrix as it is."""

    matrix: Float[Tensor, "out in"]

    @property
    def dtype(self) -> torch.dtype:
        """Of the matrix."""
        return self.matrix.dtype

    def applied(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """Return what it adds for inputs `x`."""
        return functional.linear(x.to(self.matrix.dtype), self.matrix)

    def dense(self) -> Float[Tensor, "out in"]:
        """Return the matrix."""
        return self.matrix

    def factors(self) -> tuple[Float[Tensor, "in in"], Float[Tensor, "out in"]]:
        """Return two factors: the matrix and an identity."""
        return torch.eye(self.matrix.shape[1]).to(self.matrix), self.matrix

    def copy(self, device: torch.device) -> "Full":
        """Return the same in memory of its own, without gradient."""
        return Full(matrix=self.matrix.detach().to(device, copy=True))


Delta = LowRank | Full


@dataclass(frozen=True, kw_only=True, eq=False)
class Averaged:
    """An average, and what was left out of it."""

    delta: Delta
    dropped: float = 0.0
    """Frobenius norm of the difference to the exact average; rounding not included."""


@torch.no_grad()
def average(reference: Delta, policy: LowRank, share: float, most_rank: int) -> Averaged:
    """Return share x policy + (1 - share) x reference, for 0 < share < 1.

    Args:
        reference: low-rank, or a matrix: then the average is one, too.
        policy: an adapter.
        share: weight of the policy.
        most_rank: of the result, if it is low-rank.
    """
    if isinstance(reference, Full):
        # In the same precision as a reference of all weights: fp32.
        matrix = torch.addmm(reference.matrix, policy.b, policy.a, beta=1 - share, alpha=share * policy.scale)
        return Averaged(delta=Full(matrix=matrix))
    terms = [(policy, share), (reference, 1 - share)]
    terms = [(term, weight) for term, weight in terms if bool(term.b.any()) and bool(term.a.any())] or terms[:1]
    exact = LowRank(
        a=torch.cat([term.a for term, _ in terms]),
        b=torch.cat([term.b * (weight * term.scale) for term, weight in terms], dim=1),
    )
    if is_larger_than_matrix(exact):
        return Averaged(delta=Full(matrix=exact.dense()))
    return Averaged(delta=exact) if len(exact.a) <= most_rank else compressed(exact, most_rank)


def is_larger_than_matrix(delta: LowRank) -> bool:
    """Return whether the factors take as much memory as their product."""
    return delta.a.numel() + delta.b.numel() >= delta.a.shape[1] * delta.b.shape[0]


def compressed(delta: LowRank, rank: int) -> Averaged:
    """Return the nearest matrix of a lower rank, and how far it is: the norm of the dropped singular values.

    QR of both factors leaves an r x r matrix to decompose. In double: in single, small singular values would be noise.
    """
    q_out, r_out = torch.linalg.qr(delta.b.double() * delta.scale)
    q_in, r_in = torch.linalg.qr(delta.a.double().T)
    u, singular, vh = torch.linalg.svd(r_out @ r_in.T)
    root = singular[:rank].sqrt()
    kept = LowRank(a=((q_in @ vh[:rank].T) * root).T.contiguous().to(delta.a), b=((q_out @ u[:, :rank]) * root).to(delta.b))
    return Averaged(delta=kept, dropped=math.sqrt(float(singular[rank:].square().sum())))


@torch.no_grad()
def squared_distance(one: Delta, other: Delta) -> float:
    """Return the squared Frobenius norm of the difference."""
    return squared_difference(one.dense(), other.dense())


ADAPTER = "default"
"""Its name in PEFT."""


class FrozenLinear(nn.Module):
    """A linear layer and what an adapter adds to it. Its arithmetic is that of PEFT's layer."""

    def __init__(self, base_layer: nn.Linear, delta: Delta) -> None:
        """Share `base_layer`, whose weights do not change."""
        super().__init__()
        self.base_layer, self.delta = base_layer, delta

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
        shared[id(layer)] = FrozenLinear(base_layer(layer), delta_of(layer).copy(base_layer(layer).weight.device))
    return copy.deepcopy(model, shared).eval()
