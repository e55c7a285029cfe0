"""An adapter as a folder in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peft import LoraConfig as PeftConfig
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

from grpo_core.errors import ModelError, raised_as
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from grpo_core.policy.weights import Weights, save_weights

PREFIX = "base_model.model."
"""PEFT wraps the base in two modules of these names."""


def save_adapter(config: PeftConfig, tokenizer: PreTrainedTokenizerBase, folder: Path, factors: Weights) -> None:
    """Write a folder that PEFT loads.

    Args:
        config: of the adapter.
        tokenizer: of its base.
        folder: to be made.
        factors: A and B of each layer, by `<layer>.lora_A.weight` and `<layer>.lora_B.weight`.
    """
    folder.mkdir(parents=True)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(_plain(config), indent=2, sort_keys=True) + "\n")
    tokenizer.save_pretrained(folder)
    save_weights({PREFIX + name: tensor for name, tensor in factors.items()}, folder / ADAPTER_WEIGHTS)


def read_factors(folder: Path) -> Weights:
    """Return A and B of each layer of such a folder.

    Raises:
        ModelError: the file of weights cannot be read.
    """
    unreadable = f"{folder / ADAPTER_WEIGHTS}: cannot be read as the weights of an adapter ({{cause}})"
    with raised_as(ModelError, unreadable, OSError, ValueError, SafetensorError):
        return {without_prefix(name): tensor for name, tensor in load_file(folder / ADAPTER_WEIGHTS).items()}


def without_prefix(name: str) -> str:
    """Return a name of PEFT's as the base has it.

    >>> without_prefix("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight")
    'model.layers.0.mlp.up_proj.lora_A.weight'
    """
    return name.removeprefix(PREFIX)


def _plain(config: PeftConfig) -> Mapping[str, Any]:
    """Return what PEFT would write. A set has no order of its own: the same adapter would have several files."""
    values: dict[str, Any] = {**config.to_dict(), "inference_mode": True}  # type: ignore[no-untyped-call]
    return {key: sorted(value) if isinstance(value, set) else value for key, value in values.items()}
