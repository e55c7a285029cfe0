"""A policy that is a frozen base and an adapter; its copies share the base (LoRA: Hu et al., arXiv:2106.09685).

What is copied, averaged, measured and stored is what the adapters add to the base: the base is one, whoever uses it.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from peft import LoraConfig as PeftConfig
from peft import inject_adapter_in_model
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Parameter

from grpo_core.config import LoraConfig
from grpo_core.errors import ModelError
from grpo_core.policy.loading import outline_of
from grpo_core.policy.lora.delta import (
    ADAPTER,
    Delta,
    FrozenLinear,
    Full,
    LowRank,
    adapted_layers,
    average,
    base_layer,
    delta_of,
    frozen_model,
    merged_weight,
    set_delta,
    squared_distance,
)
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PREFIX, layer_faults, layers_with_adapter
from grpo_core.policy.policy import Policy
from grpo_core.policy.weights import Weights, save_weights

A, B, SCALE, MATRIX = "lora_A.weight", "lora_B.weight", "scale", "delta"
"""What is stored of a layer's adapter: PEFT's names of the factors, their scale, or a matrix."""
BASE = "base_layer."
"""Lies between a layer's name and that of its weight where the layer has an adapter."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptedPolicy(Policy):
    """A policy whose adapter alone is trained, copied and stored."""

    most_rank: int
    """Of a reference that is an average."""

    def parameters(self) -> Iterator[Parameter]:
        """Yield the adapter's weights; a frozen copy has none."""
        yield from (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def frozen_copy(self) -> "AdaptedPolicy":
        """Return a copy whose adapter is its own and has no gradient."""
        return replace(self, model=frozen_model(self.model))

    def weights(self) -> Weights:
        """Return what the adapter consists of, in its memory: factors by PEFT's names; their scale, or a matrix, if frozen."""
        return {name: tensor for layer_name, layer in adapted_layers(self.model) for name, tensor in _parts(layer_name, layer)}

    def load(self, weights: Weights) -> None:
        """Give each layer the adapter that `weights` returned of a policy with the same layers."""
        for name, layer in adapted_layers(self.model):
            set_delta(layer, _stored_delta(name, layer, weights))

    def follow(self, policy: Policy, share: float) -> float | None:
        """See `Policy.follow`: what the adapters add is averaged, not their factors."""
        dropped = 0.0
        for (_, layer), (_, other) in zip(adapted_layers(self.model), adapted_layers(policy.model), strict=True):
            delta = delta_of(other)
            assert isinstance(delta, LowRank)
            if share < 1:
                averaged = average(delta_of(layer), delta, share, self.most_rank)
                delta, dropped = averaged.delta, dropped + averaged.dropped**2
            set_delta(layer, delta)
        return math.sqrt(dropped) if share < 1 else None

    def distance(self, other: Policy) -> float:
        """See `Policy.distance`: the base is the same, so it is that of what the adapters add."""
        pairs = zip(adapted_layers(self.model), adapted_layers(other.model), strict=True)
        return math.sqrt(sum(squared_distance(delta_of(one), delta_of(two)) for (_, one), (_, two) in pairs))

    def merged_weights(self) -> Iterator[tuple[str, Float[Tensor, "..."]]]:
        """See `Policy.merged_weights`: base and adapter are summed, one layer at a time."""
        layers = dict(adapted_layers(self.model))
        for name, parameter in self.model.named_parameters():
            layer_name, is_adapted, rest = name.rpartition(BASE)
            layer = layers.get(layer_name.removesuffix(".")) if is_adapted else None
            if layer is not None:
                yield layer_name + rest, merged_weight(layer) if rest == "weight" else parameter.detach()
            elif not parameter.requires_grad:
                yield name, parameter.detach()

    def save(self, folder: Path, weights: Weights) -> None:
        """Write a folder that PEFT loads."""
        settings = {**self.model.peft_config[ADAPTER].to_dict(), "inference_mode": True}
        # A set has no order of its own: the same adapter would have several files.
        plain = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
        folder.mkdir(parents=True)
        (folder / ADAPTER_CONFIG).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n")
        self.save_tokenizer(folder)
        save_weights({PREFIX + name: tensor for name, tensor in weights.items()}, folder / ADAPTER_WEIGHTS)

    def stored(self, folder: Path) -> Weights:
        """Return the factors in such a folder."""
        return {name.removeprefix(PREFIX): tensor for name, tensor in load_file(folder / ADAPTER_WEIGHTS).items()}

    def misfit(self, weights: Weights) -> str | None:
        """See `Policy.misfit`; those of a frozen copy fit as well, whose scale is that of the configuration."""
        return super().misfit({name: tensor for name, tensor in weights.items() if not name.endswith(f".{SCALE}")})


def _parts(name: str, layer: Any) -> Iterator[tuple[str, Tensor]]:
    delta = delta_of(layer)
    if isinstance(delta, Full):
        yield f"{name}.{MATRIX}", delta.matrix
        return
    yield f"{name}.{A}", delta.a
    yield f"{name}.{B}", delta.b
    if isinstance(layer, FrozenLinear):  # of one that is trained, it is the configuration's
        yield f"{name}.{SCALE}", torch.tensor(delta.scale, dtype=torch.float64)


def _stored_delta(name: str, layer: Any, weights: Weights) -> Delta:
    if (matrix := weights.get(f"{name}.{MATRIX}")) is not None:
        return Full(matrix=matrix)
    scale = float(weights[f"{name}.{SCALE}"]) if isinstance(layer, FrozenLinear) else 1.0  # a trained layer keeps its own
    return LowRank(a=weights[f"{name}.{A}"], b=weights[f"{name}.{B}"], scale=scale)


def with_adapter(policy: Policy, lora: LoraConfig, *, seed: int, source: str) -> AdaptedPolicy:
    """Return a policy of the same model, into which an adapter is put that adds nothing yet (A random, B 0).

    The model's own weights are frozen. Where products are computed in bfloat16, the matrices that have an adapter are kept in
    it: they do not change, so rounding them once gives what rounding them for each product does.

    Args:
        policy: whose model is changed in place.
        lora: which adapter.
        seed: of A.
        source: where the base comes from, for whoever loads the adapter later.

    Raises:
        ModelError: a target module is not there or not linear, or there is no linear layer.
    """
    model, layers = policy.model, outline_of(policy.model).linear_layers
    if (fault := next(layer_faults(lora, layers), None)) is not None:
        raise ModelError(fault)
    config = PeftConfig(
        r=lora.rank,
        lora_alpha=2 * lora.rank if lora.alpha is None else lora.alpha,  # type: ignore[arg-type]
        target_modules=[name for name, _ in layers_with_adapter(lora, layers)],
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=source,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # PEFT draws A on the CPU
        inject_adapter_in_model(config, model, ADAPTER)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    if policy.dtype == "bfloat16":
        for _, layer in adapted_layers(model):
            base_layer(layer).to(torch.bfloat16)
    model.eval()
    return AdaptedPolicy(**vars(policy), most_rank=lora.most_rank)
