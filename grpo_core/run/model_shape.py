"""The sizes of a model and of its adapter, known before either is loaded: from configurations and the outline of the model."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_core.config import LoraConfig, RunConfig
from grpo_core.config.derived import reference_moves
from grpo_core.machine.tensor_file import stored_tensors
from grpo_core.policy.lora.facts import Sides, layers_with_adapter
from grpo_core.policy.outline import Outline
from grpo_core.policy.sources.find import model_here, weight_files

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of models whose matrices are not those of `intermediate_size` alone."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the memory of a model depends on.

    `attention` is heads x size of a head, `key_value` key-value heads x size of a head; `known_layers` are its linear layers
    where its outline is known, else those of the Llama family are taken.
    """

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    attention: int
    key_value: int
    vocabulary: int
    known_layers: Mapping[str, Sides] | None = None

    @property
    def linear_layers(self) -> Mapping[str, Sides]:
        """{name: (inputs, outputs)} of all but the vocabulary head."""
        if self.known_layers is not None:
            return self.known_layers
        of_layer = {
            "self_attn.q_proj": (self.hidden, self.attention),
            "self_attn.k_proj": (self.hidden, self.key_value),
            "self_attn.v_proj": (self.hidden, self.key_value),
            "self_attn.o_proj": (self.attention, self.hidden),
            "mlp.gate_proj": (self.hidden, self.intermediate),
            "mlp.up_proj": (self.hidden, self.intermediate),
            "mlp.down_proj": (self.intermediate, self.hidden),
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


def shape_for(config: RunConfig, outline: Outline | None = None) -> ModelShape | None:
    """Return the shape of a run's model: from its files if they are here, else of a model that is known; None = neither."""
    folder = model_here(config.model.source)
    return KNOWN_SHAPES.get(config.model.source) if folder is None else shape_of(folder, outline)


def shape_of(folder: Path, outline: Outline | None = None) -> ModelShape | None:
    """Return the shape of the model in a folder, whose `outline` may be known; None where its files do not tell."""
    parameters = count_parameters(folder) if outline is None else outline.parameters
    try:
        shape = ModelShape.of(json.loads((folder / "config.json").read_text()), parameters or 0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return replace(shape, known_layers=None if outline is None else outline.linear_layers) if parameters else None


def count_parameters(folder: Path) -> int | None:
    """Return how many weights a model folder holds, from the headers of its safetensors files; None where they do not tell."""
    try:
        tensors = [tensor for file in weight_files(folder) for tensor in stored_tensors(file).values()]
    except (OSError, ValueError):
        return None
    return sum(math.prod(tensor.shape) for tensor in tensors) or None


@dataclass(frozen=True, kw_only=True)
class AdapterSize:
    """Numbers of weights.

    `weights` are those that are trained, rank x (inputs + outputs) of every matrix that is adapted; `reference` those of a
    reference that has moved, at its largest; `adapted` those of the base's matrices that have an adapter, and `inputs` the sum
    of their inputs.
    """

    weights: int
    reference: int
    adapted: int
    inputs: int


def adapter_size(config: RunConfig, layers: Mapping[str, Sides]) -> AdapterSize | None:
    """Return the size of a run's adapter; None without `model.lora`.

    After a hard copy the reference is as large as the adapter; an average of adapters (mixup_alpha below 1) grows up to
    `reference_rank`, and is a matrix of inputs x outputs where its factors would be as large.

    Args:
        config: of the run.
        layers: the linear layers of its model.
    """
    lora = config.model.lora
    if lora is None:
        return None
    adapted, rank = [sides for _, sides in layers_with_adapter(lora, layers)], reference_rank(config, lora)
    return AdapterSize(
        weights=sum(lora.rank * sum(sides) for sides in adapted),
        reference=sum(min(rank * sum(sides), math.prod(sides)) for sides in adapted),
        adapted=sum(math.prod(sides) for sides in adapted),
        inputs=sum(inputs for inputs, _ in adapted),
    )


def reference_rank(config: RunConfig, lora: LoraConfig) -> int:
    """Return the largest rank that the reference's adapter can reach."""
    is_average = reference_moves(config) and config.reference.mixup_alpha < 1
    return lora.most_rank if is_average else lora.rank
