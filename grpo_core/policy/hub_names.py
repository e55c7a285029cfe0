"""Weights by the names and in the shapes that the hub has, and back: transformers joins the experts of a layer in one."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from grpo_core.policy.loading import require_all
from grpo_core.policy.weights import named_weights
from grpo_core.policy.weights_file import WEIGHTS_FILE, Weights


def as_on_hub(model: PreTrainedModel, weights: Weights) -> Weights:
    """Return the weights of a model as a folder of transformers holds them."""
    converted: Weights = revert_weight_conversion(model, dict(weights))
    return converted


def shapes_on_hub(model: PreTrainedModel) -> Weights:
    """Return tensors without content that have the names and shapes of `as_on_hub`, of each parameter once."""
    return as_on_hub(model, {name: tensor.to("meta") for name, tensor in named_weights(model).items()})


def stored_weights(folder: Path, model: PreTrainedModel) -> Weights:
    """Return the weights in a folder of transformers, which holds those of `shapes_on_hub`, by the names of the model."""
    weights: Weights = load_file(folder / WEIGHTS_FILE)
    if weights.keys() >= dict(model.named_parameters()).keys():
        return weights
    loaded, info = type(model).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    require_all(loaded, info, folder)
    return named_weights(loaded)
