"""A folder with a LoRA adapter as PEFT writes it: what it adapts and how, read from its JSON and the header of its weights.

    adapter_config.json          rank, alpha, kind of scale, and all else that PEFT can do
    adapter_model.safetensors    A and B of each matrix, as base_model.model.<name of the module>.lora_A.weight (rank x inputs)
                                 and ....lora_B.weight (outputs x rank)

The trainer computes W + scale B A and nothing else: what PEFT does beyond that is refused by its key. Neither torch nor peft
is needed.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.errors import ModelError, few_names, name_of, raised_as, shown
from grpo_core.machine.disk import StoredTensor, stored_tensors
from grpo_core.machine.jsonfile import read_json

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TENSOR_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])\.weight")
FLOATS = ("F32", "BF16", "F16")
PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva", "mica")
"""Values of `init_lora_weights` that leave the model's own weights as they are."""
TAKEN = (
    *("peft_type", "bias", "init_lora_weights", "r", "lora_alpha", "use_rslora", "base_model_name_or_path"),  # read below
    *("auto_mapping", "inference_mode", "lora_dropout", "peft_version", "revision", "task_type"),
    *("exclude_modules", "layers_pattern", "layers_to_transform", "target_modules"),  # the weights hold what they chose
    *("corda_config", "ensure_weight_tying", "eva_config", "loftq_config", "lora_ga_config"),  # of other starts, refused above
    *("megatron_config", "megatron_core", "qalora_group_size", "runtime_config"),
)
"""Settings of PEFT that are read, name something, or have done what they do when the adapter was made; others are refused."""


@dataclass(frozen=True, kw_only=True)
class AdapterFacts:
    """A plain LoRA adapter in a folder.

    `alpha_scale` is the factor of B A: alpha / rank, with rsLoRA alpha / sqrt(rank), as `scale_formula` says. `shapes` are
    {name of a module of the model: (inputs, outputs)} of every matrix that it adapts; `base_name` is the model that it was
    trained on, as PEFT kept it: a hub id or a folder.
    """

    rank: int
    alpha_scale: float
    scale_formula: str
    shapes: Mapping[str, tuple[int, int]]
    base_name: str | None


def read_adapter(folder: Path) -> AdapterFacts:
    """Return what a folder adapts.

    Raises:
        ModelError: a file is missing or cannot be read, the adapter is no plain LoRA adapter, or its weights are not those that
            its configuration names.
    """
    what = f"adapter {name_of(str(folder), 200)}:"
    if lacking := [name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if not (folder / name).is_file()]:
        raise ModelError(f"{what} has no {lacking[0]}; give a folder that PEFT's `save_pretrained` wrote")
    with raised_as(ModelError, f"{what} {ADAPTER_CONFIG} cannot be read ({{cause}})", OSError, TypeError, ValueError):
        settings = dict(read_json(folder / ADAPTER_CONFIG))
    if (fault := next(_faults(settings), None)) is not None:
        raise ModelError(f"{what} {ADAPTER_CONFIG}: {fault}")
    with raised_as(ModelError, f"{what} {ADAPTER_WEIGHTS} cannot be used ({{cause}})", OSError, ValueError):
        shapes = _adapted(stored_tensors(folder / ADAPTER_WEIGHTS), settings["r"])
    rank, alpha = settings["r"], settings["lora_alpha"]
    is_stabilised = settings.get("use_rslora", False)
    return AdapterFacts(
        rank=rank,
        alpha_scale=alpha / (math.sqrt(rank) if is_stabilised else rank),
        scale_formula=f"lora_alpha {alpha:g} / {f'sqrt(r {rank}), as use_rslora is true' if is_stabilised else f'r {rank}'}",
        shapes=shapes,
        base_name=settings.get("base_model_name_or_path") or None,
    )


def not_finite(folder: Path) -> str | None:
    """Return that an adapter, which `read_adapter` accepts, holds NaN or an infinity; None where it does not."""
    import torch
    from safetensors.torch import load_file

    factors = load_file(folder / ADAPTER_WEIGHTS)
    broken = [name for name, tensor in sorted(factors.items()) if not torch.isfinite(tensor).all()]
    return f"{ADAPTER_WEIGHTS} holds NaN or an infinity in {few_names(broken, 1)}; take another one" if broken else None


def _faults(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield what makes a configuration of PEFT another thing than a plain LoRA adapter."""
    if settings.get("peft_type") != "LORA":
        yield f"peft_type: {shown(settings.get('peft_type'))} is not LORA, the only kind of adapter here"
    if settings.get("bias", "none") != "none":
        yield f"bias: {shown(settings['bias'])}: the model's biases were trained as well; only none can be continued here"
    if settings.get("init_lora_weights", True) not in PLAIN_STARTS:
        start = shown(settings["init_lora_weights"])
        yield f"init_lora_weights: {start} began by changing the model's own weights; convert it to a plain adapter first"
    for key, value in settings.items():
        if value and key not in TAKEN:
            yield f"{name_of(key)}: {shown(value)} has no counterpart here: the trainer computes W + scale B A and no more"
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1:
        yield f"r: {shown(rank)} is no rank, a whole number of at least 1"
    if not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        yield f"lora_alpha: {shown(alpha)} must be a number above 0"


def _adapted(tensors: Mapping[str, StoredTensor], rank: int) -> dict[str, tuple[int, int]]:
    """Return {module: (inputs, outputs)} of an adapter's tensors.

    Raises:
        ValueError: they are not A and B, of this rank, of every module.
    """
    factors: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        if (match := TENSOR_NAME.fullmatch(name)) is None or tensor.dtype not in FLOATS:
            raise ValueError(f"{name_of(name)} of the type {tensor.dtype} is neither A nor B of a module")
        factors.setdefault(match["module"], {})[match["factor"]] = tensor.shape
    shapes = {}
    for module, both in sorted(factors.items()):
        match (both.get("A"), both.get("B")):
            case ((a_rank, inputs), (outputs, b_rank)) if a_rank == b_rank == rank:
                shapes[module] = (inputs, outputs)
            case (a, b):
                raise ValueError(f"A {a} and B {b} of {name_of(module)} are not {rank} x inputs and outputs x {rank}")
    if not shapes:
        raise ValueError("it is empty")
    return shapes
