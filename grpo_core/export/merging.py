"""A LoRA adapter added to the weights that it was trained on: W + scale x B A, by the names of both files.

PEFT's `merge_and_unload` does the same to a loaded model; here neither model nor adapter is one, only tensors by name.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from grpo_core.errors import ModelError, few_names, shown
from grpo_core.policy.weights_file import Weights

PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
UNSUPPORTED = {"use_dora": False, "bias": "none", "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}}
"""Settings of an adapter, each with the only value with which it is low-rank matrices of one scale and nothing else."""


def scale_of(settings: Mapping[str, Any]) -> float:
    """Return what B A is multiplied by, from the content of an adapter_config.json.

    >>> scale_of({"peft_type": "LORA", "r": 8, "lora_alpha": 16})
    2.0

    Raises:
        ModelError: the adapter holds more than low-rank matrices of one scale.
    """
    if settings.get("peft_type") != "LORA":
        raise ModelError(f"adapter_config.json: peft_type {shown(settings.get('peft_type'))} cannot be merged, only LORA can")
    for key, plain in UNSUPPORTED.items():
        if settings.get(key) not in (None, plain):
            raise ModelError(f"adapter_config.json: {key} {shown(settings[key])} cannot be merged; export --adapter instead")
    rank, alpha = int(settings["r"]), float(settings["lora_alpha"])
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def merged(base: Weights, adapter: Weights, scale: float, *, transposed: bool = False) -> dict[str, torch.Tensor]:
    """Return the base's weights, fp32, with every pair of the adapter added to its matrix.

    Args:
        base: weights [out, in] by their names in the model's file.
        adapter: `base_model.model.X.lora_A.weight` [r, in] and `...lora_B.weight` [out, r] for the weight `X.weight`.
        scale: of B A.
        transposed: whether the base keeps its matrices as [in, out] (`fan_in_fan_out`).

    Raises:
        ModelError: a matrix of the adapter has no counterpart, or another shape.
    """
    result = {name: tensor.to(torch.float32) for name, tensor in base.items()}
    for name, down, up in _pairs(adapter):
        if name not in result:
            raise ModelError(f"adapter: is for the weight {shown(name)}, which the base does not have; is it another model?")
        product = (up.to(torch.float32) @ down.to(torch.float32)) * scale
        delta = product.T if transposed else product
        if delta.shape != result[name].shape:
            found, wanted = list(delta.shape), list(result[name].shape)
            raise ModelError(f"adapter: {name} has the shape {found}, in the base it is {wanted}; is it another model?")
        result[name] = result[name] + delta
    return result


def _pairs(adapter: Weights) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield (name of the base's weight, A, B)."""
    downs = {name.removesuffix(DOWN) for name in adapter if name.endswith(DOWN)}
    ups = {name.removesuffix(UP) for name in adapter if name.endswith(UP)}
    others = [name for name in adapter if not name.endswith((DOWN, UP))]
    alone = sorted(downs ^ ups)
    if others or alone:
        raise ModelError(f"adapter: {few_names([*others, *alone], 4)} is no pair of low-rank matrices; the adapter is damaged")
    for module in sorted(downs):
        yield f"{module.removeprefix(PREFIX)}.weight", adapter[module + DOWN], adapter[module + UP]
