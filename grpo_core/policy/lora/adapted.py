"""A policy that is a frozen base and an adapter; its copies share the base.

What is copied, averaged, measured and stored is what the adapters add to the base: the base is one, whoever uses it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from peft.tuners.lora import Linear as TrainedLinear
from torch import Tensor
from torch.nn import Parameter

from grpo_core.errors import name_of
from grpo_core.policy.linear import base_layer
from grpo_core.policy.lora.delta import Delta, Full, LowRank, average, squared_distance
from grpo_core.policy.lora.facts import ADAPTER_WEIGHTS
from grpo_core.policy.lora.folder import read_factors, save_adapter, without_prefix
from grpo_core.policy.lora.layers import (
    ADAPTER,
    AdaptedLinear,
    FrozenLinear,
    adapted_layers,
    delta_of,
    factors_of,
    frozen_model,
    merged_weight,
    scale_of,
    set_delta,
)
from grpo_core.policy.policy import Policy
from grpo_core.policy.weights_file import Shapes, Weights

A, B, SCALE, MATRIX = "lora_A.weight", "lora_B.weight", "scale", "delta"
"""What is stored of a layer's adapter: PEFT's names of the factors, their scale, or a matrix."""
BASE = "base_layer."
"""Lies between a layer's name and that of its weight where the layer has an adapter."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptedPolicy(Policy):
    """A policy whose adapter alone is trained, copied and stored."""

    most_rank: int
    """Of a reference that is an average."""

    @classmethod
    def of(cls, policy: Policy, *, most_rank: int) -> "AdaptedPolicy":
        """Return a policy whose model has an adapter as one of which that alone is trained."""
        return cls(**vars(policy), most_rank=most_rank)

    def parameters(self) -> Iterator[Parameter]:
        """Yield the adapter's weights; a frozen copy has none."""
        yield from (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def frozen_copy(self) -> "AdaptedPolicy":
        """Return a copy whose adapter is its own and has no gradient."""
        return replace(self, model=frozen_model(self.model))

    def weights(self) -> Weights:
        """Return what the adapter consists of, in its memory: factors by PEFT's names; their scale, or a matrix, if frozen."""
        return {name: tensor for layer_name, layer in self._layers() for name, tensor in _parts(layer_name, layer)}

    def state(self) -> Weights:
        """Return what its folder holds: the factors."""
        return self.weights()

    def load(self, weights: Weights) -> None:
        """Give each layer the adapter that `weights` returned of a policy with the same layers."""
        for name, layer in self._layers():
            set_delta(layer, _delta(name, layer, weights))

    def follow(self, policy: Policy, share: float) -> float | None:
        """See `Policy.follow`: what the adapters add is averaged, not their factors."""
        assert isinstance(policy, AdaptedPolicy)
        dropped = 0.0
        for (_, layer), (_, other) in zip(self._layers(), policy._layers(), strict=True):
            delta = delta_of(other)
            assert isinstance(delta, LowRank)
            if share < 1:
                averaged = average(delta_of(layer), delta, share, self.most_rank)
                delta, dropped = averaged.delta, dropped + averaged.dropped**2
            set_delta(layer, delta)
        return math.sqrt(dropped) if share < 1 else None

    def distance(self, other: Policy) -> float:
        """See `Policy.distance`: the base is the same, so it is that of what the adapters add."""
        assert isinstance(other, AdaptedPolicy)
        pairs = zip(self._layers(), other._layers(), strict=True)
        return math.sqrt(sum(squared_distance(delta_of(one), delta_of(two)) for (_, one), (_, two) in pairs))

    def merged_weights(self) -> Iterator[tuple[str, Float[Tensor, "..."]]]:
        """See `Policy.merged_weights`: base and adapter are summed, one layer at a time."""
        layers = dict(self._layers())
        for name, parameter in self.model.named_parameters():
            layer_name, is_adapted, rest = name.rpartition(BASE)
            layer = layers.get(layer_name.removesuffix(".")) if is_adapted else None
            if layer is not None:
                merged = rest == "weight"
                yield layer_name + rest, merged_weight(layer) if merged else parameter.detach()
            elif not parameter.requires_grad:
                yield name, parameter.detach()

    def save(self, folder: Path, state: Weights) -> tuple[str, str]:
        """Write a folder that PEFT loads."""
        return ADAPTER_WEIGHTS, save_adapter(self.model.peft_config[ADAPTER], self.tokenizer, folder, state)

    def stored(self, folder: Path) -> Weights:
        """Return the factors in such a folder."""
        return read_factors(folder)

    def misfit(self, shapes: Shapes, *, in_folder: bool = False) -> str | None:
        """See `Policy.misfit`. A frozen copy takes factors of any rank, or matrices."""
        if in_folder:
            shapes = {without_prefix(name): shape for name, shape in shapes.items()}
        for name, layer in self._layers():
            fault = _misfit(name, layer, shapes)
            if fault is not None:
                return f"the adapter of {name} has {fault}"
        known = {f"{name}.{part}" for name, _ in self._layers() for part in (A, B, SCALE, MATRIX)}
        return next((f"{name_of(name)} belongs to no layer that is adapted here" for name in shapes if name not in known), None)

    def _layers(self) -> Iterator[tuple[str, AdaptedLinear]]:
        return adapted_layers(self.model)


def _parts(name: str, layer: AdaptedLinear) -> Iterator[tuple[str, Tensor]]:
    delta = delta_of(layer)
    if isinstance(delta, Full):
        yield f"{name}.{MATRIX}", delta.matrix
        return
    yield f"{name}.{A}", delta.a
    yield f"{name}.{B}", delta.b
    if isinstance(layer, FrozenLinear):  # of one that is trained, it is the configuration's
        yield f"{name}.{SCALE}", torch.tensor(delta.scale, dtype=torch.float64)


def _misfit(name: str, layer: AdaptedLinear, shapes: Shapes) -> str | None:
    a, b, scale, matrix = (shapes.get(f"{name}.{part}") for part in (A, B, SCALE, MATRIX))
    (rows, columns), is_trained = base_layer(layer).weight.shape, isinstance(layer, TrainedLinear)
    if matrix == [rows, columns] and not is_trained:
        return None
    rank = len(factors_of(layer)[0].weight) if isinstance(layer, TrainedLinear) else (a or [0])[0]
    if (a, b) != ([rank, columns], [rows, rank]):
        found = f"A {a} and B {b}" if matrix is None else f"a matrix {matrix}"
        return f"the shape {found}, here it is A [{rank}, {columns}] and B [{rows}, {rank}]"
    return None if is_trained or scale == [] else "no scale"


def _delta(name: str, layer: AdaptedLinear, weights: Weights) -> Delta:
    matrix = weights.get(f"{name}.{MATRIX}")
    if matrix is not None:
        return Full(matrix=matrix)
    scale = float(weights[f"{name}.{SCALE}"]) if isinstance(layer, FrozenLinear) else scale_of(layer)
    return LowRank(a=weights[f"{name}.{A}"], b=weights[f"{name}.{B}"], scale=scale)
