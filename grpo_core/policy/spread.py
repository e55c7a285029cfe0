"""Models whose weights are spread over processes: opened from a folder of which each process reads its rows, and copied."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from grpo_core.errors import ModelError, few_names
from grpo_core.parallel.sharded import rows_of, spread, without_weights
from grpo_core.parallel.world import World, local
from grpo_core.policy.device import Dtype
from grpo_core.policy.forward import decoder_layers, has_full_attention
from grpo_core.policy.sources.find import weight_files
from grpo_core.policy.vision import reads_images

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""Architectures whose log-probabilities are known to be those of one process."""


@torch.no_grad()
def open_spread(folder: Path, outline: PreTrainedModel, world: World, dtype: Dtype) -> PreTrainedModel:
    """Return the model in a folder; each process reads its rows of every weight.

    Args:
        folder: of transformers.
        outline: the model without memory, whose names are known to be those of the folder.
        world: over whose shards.
        dtype: what its matrix products are computed in.

    Raises:
        ModelError: the architecture is not supported.
    """
    config = outline.config.get_text_config()
    if reads_images(outline):
        raise ModelError(
            f"training.shards: {world.shards} is not supported with a model that reads images; set it to 1, with which each "
            "process has all weights"
        )
    if config.model_type not in MODEL_TYPES or not has_full_attention(config):
        raise ModelError(
            f"training.shards: {world.shards} is not supported with the architecture {config.model_type}, only with full "
            f"attention and {', '.join(MODEL_TYPES)}; set it to 1, with which each process has all weights"
        )
    model = _spread(lambda: type(outline)(outline.config), world, dtype)
    model.generation_config = outline.generation_config
    own, read = dict(model.named_parameters(remove_duplicate=False)), set()
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as stored:
            for name in own.keys() & set(stored.keys()):
                local(own[name]).copy_(rows_of(own[name], stored.get_slice(name)))
                read.add(id(own[name]))
    if missing := [name for name, parameter in own.items() if id(parameter) not in read]:
        raise ModelError(f"training.shards: not supported with the files in {folder}, which lack {few_names(missing, 3)}")
    return model


@torch.no_grad()
def copy_model(model: PreTrainedModel, world: World, dtype: Dtype) -> PreTrainedModel:
    """Return a copy whose weights have no gradient, spread as the model is; FSDP2 refuses `copy.deepcopy`."""
    plain = type(model).__mro__[2]  # FSDP2 has made a class of it and of its own
    copied = _spread(lambda: plain(model.config).requires_grad_(False), world, dtype)
    for own, parameter in zip(copied.parameters(), model.parameters(), strict=True):
        local(own).copy_(local(parameter))
    return copied


def _spread(make: Callable[[], Any], world: World, dtype: Dtype) -> PreTrainedModel:
    with without_weights():
        model: PreTrainedModel = make().eval()
    return spread(model, decoder_layers(model), world, in_bfloat16=dtype == "bfloat16")
