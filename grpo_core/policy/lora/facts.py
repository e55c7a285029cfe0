"""A folder with a LoRA adapter as PEFT writes it: what it adapts and how, read from its JSON and the header of its weights.

    adapter_config.json          rank, alpha, kind of scale, and all else that PEFT can do
    adapter_model.safetensors    A and B of each matrix, as base_model.model.<name of the module>.lora_A.weight (rank x inputs)
                                 and ....lora_B.weight (outputs x rank)

The trainer computes W + scale B A and nothing else: what PEFT does beyond that is refused by name. Neither torch nor peft is
needed.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.errors import ModelError, few_names, name_of, raised_as, shown
from grpo_core.machine.jsonfile import read_json
from grpo_core.machine.tensor_file import StoredTensor, first_not_finite, stored_tensors

ADAPTER_CONFIG, ADAPTER_WEIGHTS, PICKLED_WEIGHTS = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
TENSOR_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])\.weight")
FLOATS = ("F32", "BF16", "F16")
ANOTHER_PRODUCT = "what it adds to a matrix is another product than scale B A"
ONE_FOR_ALL = "every matrix has the same rank and alpha here"
CHANGES_BASE = "it began by changing the model's own weights, which stay as they are here; convert it to a plain adapter first"
REFUSED = {
    "use_dora": "DoRA also trains the norm of each column",
    "modules_to_save": "these layers were trained whole",
    "trainable_token_indices": "rows of the embedding were trained as well",
    "target_parameters": "the trainer adapts linear layers, not single parameters",
    "rank_pattern": ONE_FOR_ALL,
    "alpha_pattern": ONE_FOR_ALL,
    "layer_replication": "it repeats layers, which makes another model",
    "lora_bias": "B has a bias, which the trainer does not",
    "fan_in_fan_out": "its matrices are stored transposed, as GPT-2's are; the trainer adapts nn.Linear",
    "alora_invocation_tokens": "it acts from some token on only",
    **dict.fromkeys(("use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config"), ANOTHER_PRODUCT),
}
"""Settings of PEFT that have to be off, each with what it does."""
PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva", "mica")
"""Values of `init_lora_weights` that leave the model's own weights as they are."""


@dataclass(frozen=True, kw_only=True)
class AdapterFacts:
    """A plain LoRA adapter in a folder."""

    rank: int
    alpha_scale: float
    """Factor of B A: alpha / rank, with rsLoRA alpha / sqrt(rank)."""
    scale_formula: str
    """Where it comes from, such as `lora_alpha 16 / sqrt(r 4)`."""
    shapes: Mapping[str, tuple[int, int]]
    """{name of a module of the model: (inputs, outputs)} of every matrix that it adapts."""
    base_name: str | None
    """Of the model that it was trained on, as PEFT kept it: a hub id or a folder."""

    @property
    def alpha(self) -> float:
        """`model.lora.alpha` with which the trainer has the same scale."""
        return self.alpha_scale * self.rank

    @property
    def target_modules(self) -> tuple[str, ...]:
        """The last parts of the adapted modules' names, sorted."""
        return tuple(sorted({name.rpartition(".")[2] for name in self.shapes}))


def read_adapter(folder: Path) -> AdapterFacts:
    """Return what a folder adapts.

    Raises:
        ModelError: a file is missing or cannot be read, the weights are a pickle, the adapter is no plain LoRA adapter, or its
            weights are not those that its configuration names.
    """
    what = f"adapter {name_of(str(folder), 200)}:"
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(f"{what} {_absent(folder, name)}")
    with raised_as(ModelError, f"{what} {ADAPTER_CONFIG} cannot be read ({{cause}})", OSError, ValueError):
        settings = read_json(folder / ADAPTER_CONFIG)
        if not isinstance(settings, dict):
            raise ValueError(f"it holds a {type(settings).__name__}")
    if (fault := next(_faults(settings), None)) is not None:
        raise ModelError(f"{what} {ADAPTER_CONFIG}: {fault}")
    damaged = f"{what} {ADAPTER_WEIGHTS} cannot be used ({{cause}}); copy or write it again"
    with raised_as(ModelError, damaged, OSError, ValueError):
        shapes = _adapted(stored_tensors(folder / ADAPTER_WEIGHTS), settings["r"])
    rank, alpha, base = settings["r"], settings["lora_alpha"], settings.get("base_model_name_or_path")
    is_stabilised = settings.get("use_rslora", False)
    return AdapterFacts(
        rank=rank,
        alpha_scale=alpha / (math.sqrt(rank) if is_stabilised else rank),
        scale_formula=f"lora_alpha {alpha:g} / {f'sqrt(r {rank}), as use_rslora is true' if is_stabilised else f'r {rank}'}",
        shapes=shapes,
        base_name=base if isinstance(base, str) and base else None,
    )


def not_finite(folder: Path) -> str | None:
    """Return that an adapter, which `read_adapter` accepts, holds NaN or an infinity; None where it does not."""
    name = first_not_finite(folder / ADAPTER_WEIGHTS)
    return None if name is None else f"{ADAPTER_WEIGHTS} holds NaN or an infinity in {name_of(name, 200)}; take another one"


def _absent(folder: Path, name: str) -> str:
    """Return what to do where a folder lacks one of the two files."""
    if name == ADAPTER_WEIGHTS and (folder / PICKLED_WEIGHTS).exists():
        return (
            f"its weights are a pickle ({PICKLED_WEIGHTS}), which may run code as it is read; save it as safetensors "
            "(PEFT's `save_pretrained` does)"
        )
    is_other = os.path.lexists(folder / name)
    kind = "is no folder" if not folder.is_dir() else f"its {name} is no file" if is_other else f"has no {name}"
    return f"{kind}; give a folder that PEFT's `save_pretrained` wrote"


def _faults(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield what makes a configuration of PEFT another thing than a plain LoRA adapter."""
    kind, start = settings.get("peft_type"), settings.get("init_lora_weights", True)
    if kind != "LORA":
        yield f"peft_type: {shown(kind)} is not LORA, the only kind of adapter here"
    if settings.get("bias", "none") != "none":
        yield f"bias: {shown(settings['bias'])}: the model's biases were trained as well; only none can be continued here"
    for key, reason in REFUSED.items():
        if settings.get(key):
            yield f"{key}: {shown(settings[key])} has no counterpart here: {reason}"
    if start not in PLAIN_STARTS:
        yield f"init_lora_weights: {shown(start)}: {CHANGES_BASE}"
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        yield f"r: {shown(rank)} is no rank, a whole number of at least 1"
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < math.inf:
        yield f"lora_alpha: {shown(alpha)} must be a number above 0"
    if not isinstance(settings.get("use_rslora", False), bool):
        yield f"use_rslora: {shown(settings['use_rslora'])} must be true or false"


def _adapted(tensors: Mapping[str, StoredTensor], rank: int) -> dict[str, tuple[int, int]]:
    """Return {module: (inputs, outputs)} of an adapter's tensors.

    Raises:
        ValueError: they are not A and B, of this rank, of every module.
    """
    factors: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        if (match := TENSOR_NAME.fullmatch(name)) is None:
            raise ValueError(f"{name_of(name)} is neither A nor B of a module")
        if tensor.dtype not in FLOATS:
            raise ValueError(f"{name_of(name)} is of the type {tensor.dtype}, not one of {', '.join(FLOATS)}")
        factors.setdefault(match["module"], {})[match["factor"]] = tensor.shape
    if not factors:
        raise ValueError("it is empty")
    if alone := sorted(module for module, both in factors.items() if len(both) < 2):
        raise ValueError(f"A or B is missing of {few_names(alone, 3)}")
    return {module: _sides(module, both["A"], both["B"], rank) for module, both in sorted(factors.items())}


def _sides(module: str, a: tuple[int, ...], b: tuple[int, ...], rank: int) -> tuple[int, int]:
    """Return the inputs and outputs of a matrix.

    Raises:
        ValueError: A and B do not fit each other or the rank.
    """
    if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
        raise ValueError(f"A is {_times(a)} and B {_times(b)} of {name_of(module)}, not {rank} x inputs and outputs x {rank}")
    return a[1], b[0]


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
