"""The sizes of a model and its linear layers, from its files or, of models that presets name, without them."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_core.policy.lora.targets import Sides
from grpo_core.policy.outline import Outline
from grpo_core.policy.sources.weight_files import tensors_in

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of models whose matrices are not those of `intermediate_size` alone."""
LAYER_WEIGHT = re.compile(r"(?P<module>(?:.+\.)?\d+\..+)\.weight")
"""The weight of a module in a numbered layer: neither the embedding nor the vocabulary head is."""
OF_EXPERTS = re.compile(r"\.experts\.\d+\.")
"""Transformers joins them, so they are no linear layers."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the memory of a model depends on."""

    parameters: int
    layers: int
    hidden: int
    """H."""
    intermediate: int
    """I."""
    attention: int
    """A: heads x size of a head."""
    key_value: int
    """K: key-value heads x size of a head."""
    vocabulary: int
    stored_layers: Mapping[str, Sides] = field(default_factory=dict)
    """Linear layers by their names, as its files have them; empty where there are none: those of the Llama family then."""

    @property
    def linear_layers(self) -> Mapping[str, Sides]:
        """{name: (inputs, outputs)} of all but the vocabulary head."""
        if self.stored_layers:
            return self.stored_layers
        hidden, attention, key_value, intermediate = self.hidden, self.attention, self.key_value, self.intermediate
        of_layer = {
            "self_attn.q_proj": (hidden, attention),
            "self_attn.k_proj": (hidden, key_value),
            "self_attn.v_proj": (hidden, key_value),
            "self_attn.o_proj": (attention, hidden),
            "mlp.gate_proj": (hidden, intermediate),
            "mlp.up_proj": (hidden, intermediate),
            "mlp.down_proj": (intermediate, hidden),
        }
        return {f"model.layers.{number}.{name}": sides for number in range(self.layers) for name, sides in of_layer.items()}

    @property
    def matrices(self) -> int:
        """How many weights the layers' matrices have."""
        attention = self.hidden * (2 * self.attention + 2 * self.key_value)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @classmethod
    def of(cls, config: dict[str, Any], parameters: int) -> "ModelShape":
        """Read a `config.json` of transformers.

        Raises:
            LookupError, TypeError: it names its sizes otherwise.
        """
        text = config.get("text_config", config)
        if experts := [key for key in text if key in EXPERTS]:
            raise LookupError(f"{experts[0]}: layers of experts are no product of these sizes")
        heads, hidden = text["num_attention_heads"], text["hidden_size"]
        size = text.get("head_dim") or hidden // heads
        return cls(
            parameters=parameters,
            layers=text["num_hidden_layers"],
            hidden=hidden,
            intermediate=text["intermediate_size"],
            attention=heads * size,
            key_value=(text.get("num_key_value_heads") or heads) * size,
            vocabulary=text["vocab_size"],
        )


KNOWN_SHAPES = {
    "Qwen/Qwen2.5-0.5B-Instruct": ModelShape(
        parameters=494_032_768,
        layers=24,
        hidden=896,
        intermediate=4864,
        attention=896,
        key_value=128,
        vocabulary=151_936,
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": ModelShape(
        parameters=1_543_714_304,
        layers=28,
        hidden=1536,
        intermediate=8960,
        attention=1536,
        key_value=256,
        vocabulary=151_936,
    ),
}
"""Of models that presets name, so that a preset can be checked before its model is downloaded."""


def shape_of(folder: Path, outline: Outline | None = None) -> ModelShape | None:
    """Return the shape of the model in a folder, whose `outline` may be known; None where its files do not tell."""
    parameters = count_parameters(folder) if outline is None else outline.parameters
    try:
        config = json.loads((folder / "config.json").read_text())
        if parameters is None:
            return None
        layers = linear_layers_in(folder) if outline is None else outline.linear_layers
        return replace(ModelShape.of(config, parameters), stored_layers=layers)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def count_parameters(folder: Path) -> int | None:
    """Return how many weights a model folder holds, from the headers of its safetensors files; None where they do not tell."""
    try:
        return sum(math.prod(tensor.shape) for tensor in tensors_in(folder).values()) or None
    except (OSError, ValueError):
        return None


def linear_layers_in(folder: Path) -> dict[str, Sides]:
    """Return {name: (inputs, outputs)} of the linear layers in a folder of transformers, but the vocabulary head.

    Raises:
        OSError, ValueError: a file cannot be read, or is no safetensors file.
    """
    found = {}
    for name, tensor in tensors_in(folder).items():
        match = LAYER_WEIGHT.fullmatch(name)
        if match is not None and len(tensor.shape) == 2 and not OF_EXPERTS.search(name):
            found[match["module"]] = (tensor.shape[1], tensor.shape[0])
    return found
