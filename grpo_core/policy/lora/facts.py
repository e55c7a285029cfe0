"""LoRA without torch and peft: which layers get an adapter, and what a folder holds that PEFT has written.

    adapter_config.json          rank, alpha, kind of scale, and all else that PEFT can do
    adapter_model.safetensors    A and B of each matrix, as base_model.model.<name of the module>.lora_A.weight (rank x inputs)
                                 and ....lora_B.weight (outputs x rank)

The trainer computes W + scale B A and nothing else: what PEFT does beyond that is refused by its key.
"""

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_core.config import LoraConfig
from grpo_core.errors import ModelError, few_names, name_of, raised_as, shown
from grpo_core.machine.disk import read_json, stored_tensors

Sides = tuple[int, int]
"""(inputs, outputs) of a matrix."""
TARGETS, START = "model.lora.target_modules", "model.lora.init_from"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""PEFT wraps the base in two modules of these names."""
PLAIN = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva", "mica"),  # the model's own weights stay as they are
}
"""Values of settings of PEFT that make a plain adapter."""
TAKEN = (
    *("r", "lora_alpha", "use_rslora", "base_model_name_or_path"),  # read below
    *("auto_mapping", "inference_mode", "lora_dropout", "peft_version", "revision", "task_type"),
    *("exclude_modules", "layers_pattern", "layers_to_transform", "target_modules"),  # the weights hold what they chose
    *("corda_config", "ensure_weight_tying", "eva_config", "loftq_config", "lora_ga_config"),  # of other starts, refused above
    *("megatron_config", "megatron_core", "qalora_group_size", "runtime_config"),
)
"""Settings that are read, name something, or have done what they do when the adapter was made; others are refused."""


@dataclass(frozen=True, kw_only=True)
class AdapterFacts:
    """A plain LoRA adapter in a folder.

    `alpha_scale` is the factor of B A: alpha / rank, with rsLoRA alpha / sqrt(rank). `shapes` are {name of a module of the
    model: (inputs, outputs)} of every matrix that it adapts; `base_name` is the model that it was trained on, as PEFT kept it:
    a hub id or a folder.
    """

    rank: int
    alpha_scale: float
    shapes: Mapping[str, Sides]
    base_name: str | None


def read_adapter(folder: Path) -> AdapterFacts:
    """Return what a folder adapts.

    Raises:
        ModelError: a file is missing or cannot be read, or the adapter is no plain LoRA adapter.
    """
    what, refused = f"adapter {name_of(str(folder), 200)}:", (OSError, LookupError, TypeError, ValueError, ArithmeticError)
    with raised_as(ModelError, f"{what} {ADAPTER_CONFIG} cannot be used ({{cause}})", *refused):
        settings = dict(read_json(folder / ADAPTER_CONFIG))
        rank, is_stabilised = settings["r"], settings.get("use_rslora")
        scale = settings["lora_alpha"] / (math.sqrt(rank) if is_stabilised else rank)
    for key, value in settings.items():
        is_plain = value in PLAIN[key] if key in PLAIN else not value or key in TAKEN
        if not is_plain:
            raise ModelError(
                f"{what} {ADAPTER_CONFIG}: {name_of(key)}: {shown(value)} has no counterpart here: the trainer computes "
                "W + scale B A and no more"
            )
    with raised_as(ModelError, f"{what} {ADAPTER_WEIGHTS} cannot be used ({{cause}})", *refused):
        stored = {name.removeprefix(PREFIX): one.shape for name, one in stored_tensors(folder / ADAPTER_WEIGHTS).items()}
        modules = sorted({name.rpartition(".lora_")[0] for name in stored})
        shapes = {name: (stored[f"{name}.lora_A.weight"][1], stored[f"{name}.lora_B.weight"][0]) for name in modules}
    return AdapterFacts(rank=rank, alpha_scale=scale, shapes=shapes, base_name=settings.get("base_model_name_or_path") or None)


def layers_with_adapter(lora: LoraConfig, layers: Mapping[str, Sides]) -> Iterator[tuple[str, Sides]]:
    """Yield the linear layers that get an adapter, by name."""
    for name, sides in layers.items():
        if lora.target_modules is None or any(is_target(target, name) for target in lora.target_modules):
            yield name, sides


def is_target(target: str, name: str) -> bool:
    """Return whether a target names a layer: by its whole name or its end.

    >>> [is_target(target, "model.layers.1.mlp.up_proj") for target in ("up_proj", "mlp.up_proj", "proj", "layers.1")]
    [True, True, False, False]
    """
    return name == target or name.endswith(f".{target}")


def layer_faults(lora: LoraConfig, layers: Mapping[str, Sides]) -> Iterator[str]:
    """Yield what is wrong with targets and rank, each in one line.

    Args:
        lora: the adapter.
        layers: the linear layers of the model, but its head.
    """
    ends = sorted({name.rpartition(".")[2] for name in layers})
    for target in lora.target_modules or ():
        if not any(is_target(target, name) for name in layers):
            close = difflib.get_close_matches(target, ends, n=1)
            others = f"did you mean {close[0]}?" if close else f"there are {few_names(ends, 12)}"
            yield f"{TARGETS}: {name_of(target)} is no linear layer of this model, its head aside; {others}"
    if small := [(min(sides), name) for name, sides in layers_with_adapter(lora, layers) if min(sides) < lora.rank]:
        least, name = min(small)
        yield f"model.lora.rank: {lora.rank} is more than {least}, the smaller side of {name}; lower it"
    if not layers:
        yield "model.lora: no layer of this model is a plain linear layer, so none can have an adapter; set it to null"
