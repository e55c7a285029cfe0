"""The sizes of a model, of its adapter, and of what a run writes, known before anything is loaded.

    checkpoint = 4 bytes x parameters x (policy, two moments of AdamW; the reference once a sync made it differ)
    need       = (keep_checkpoints + one being written + the best) x checkpoint + 4 bytes x parameters, of the initial policy

All weights that are kept are fp32. With `model.lora` they are the adapter's: its base is `model.source`. Activations and the
model's own files are no part of it.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_core.config import LoraConfig, RunConfig
from grpo_core.config.derived import reference_moves
from grpo_core.errors import JournalError
from grpo_core.machine.disk import folder_bytes, free_bytes, stored_tensors
from grpo_core.policy.lora.facts import Sides, layers_with_adapter
from grpo_core.policy.outline import Outline
from grpo_core.policy.saved import list_checkpoints
from grpo_core.policy.sources.find import model_here, weight_files
from grpo_core.run.folder import RunDir

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of models whose matrices are not those of `intermediate_size` alone."""


@dataclass(frozen=True, kw_only=True)
class TowerShape:
    """What the memory depends on that a model takes to read images.

    `weights` are also those that join the tower to the text; 0 where the outline of the model is not known. `patches` are those
    that one token of a prompt stands for, at most.
    """

    weights: int
    layers: int
    hidden: int
    intermediate: int
    patches: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> "TowerShape | None":
        """Read a `config.json` of transformers; None = a model of text.

        Raises:
            LookupError, TypeError: it names its sizes otherwise.
        """
        if (vision := config.get("vision_config")) is None:
            return None
        side = vision.get("spatial_merge_size") or config.get("scale_factor") or 1 / config.get("downsample_ratio", 1)
        patches = round(side**2)
        if (tokens := config.get("mm_tokens_per_image")) is not None:
            patches = (vision["image_size"] // vision["patch_size"]) ** 2 // tokens
        return cls(
            weights=0,
            layers=vision.get("depth") or vision["num_hidden_layers"],
            hidden=vision["hidden_size"],
            intermediate=vision["intermediate_size"],
            patches=patches,
        )


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
    tower: TowerShape | None = None

    @cached_property
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
            tower=TowerShape.of(config),
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
    "Qwen/Qwen2.5-7B-Instruct": ModelShape(
        parameters=7_615_616_512,
        layers=28,
        hidden=3584,
        intermediate=18_944,
        attention=3584,
        key_value=512,
        vocabulary=152_064,
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
    if not parameters or outline is None:
        return shape if parameters else None
    tower = None if shape.tower is None else replace(shape.tower, weights=outline.tower)
    return replace(shape, known_layers=outline.linear_layers, tower=tower)


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


BYTES_PER_WEIGHT = 4
MOMENTS = 2
TEXT_BYTES = 20_000_000
"""Journal, completions, tables, report: what does not grow with the model."""
REMEDIES = ("training.keep_checkpoints=1", "tracking.log_policy=false", "another disk")
"""What makes room."""


@dataclass(frozen=True, kw_only=True)
class KeptWeights:
    """Weights that checkpoints are made of: all of a model, or those of an adapter, whose base no checkpoint holds.

    `reference` are those of a reference that has moved, at its largest.
    """

    policy: int
    reference: int


def kept_weights(config: RunConfig, folder: Path) -> KeptWeights | None:
    """Return what a run with the model in a folder keeps; None where its files do not tell."""
    if config.model.lora is None:
        num_parameters = count_parameters(folder)
        return None if num_parameters is None else KeptWeights(policy=num_parameters, reference=num_parameters)
    shape = shape_of(folder)
    size = None if shape is None else adapter_size(config, shape.linear_layers)
    return KeptWeights(policy=size.weights, reference=size.reference) if size is not None and size.weights else None


def checkpoint_bytes(config: RunConfig, weights: KeptWeights) -> int:
    """Return the size of one checkpoint, at its largest."""
    return BYTES_PER_WEIGHT * (weights.policy * (1 + MOMENTS) + weights.reference * reference_moves(config))


def disk_need(config: RunConfig, weights: KeptWeights, *, present: Sequence[int] = (), tracked_here: bool = False) -> int:
    """Return the bytes that a run has still to write, at most at a time.

    Args:
        config: of the run.
        weights: that it keeps.
        present: bytes of each whole checkpoint that it has.
        tracked_here: whether MLflow keeps its artifacts on this disk.
    """
    steps, evaluates = config.training.steps, config.evaluation.every_steps is not None
    periods = (config.training.checkpoint_every, config.evaluation.every_steps)
    written = 1 + sum((steps - 1) // every for every in periods if every)  # the last one, and at most these
    most = min(config.training.keep_checkpoints + 1 + evaluates, written) + len(config.training.keep_at)
    kept = most * checkpoint_bytes(config, weights)
    policies = 1 + (1 + evaluates) * (tracked_here and config.tracking.log_policy)
    return max(0, kept + policies * BYTES_PER_WEIGHT * weights.policy - sum(present)) + TEXT_BYTES


def require_disk(what: str, need: int, folder: Path) -> str:
    """Return in words how much disk a run or a sweep needs and has.

    Args:
        what: is to be written, for the message.
        need: bytes.
        folder: in which they are written; need not exist.

    Raises:
        JournalError: it will not fit; the message names what needs less.
    """
    free = free_bytes(folder)
    said = f"needs up to {shown_bytes(need)} in {folder}; {shown_bytes(free)} free"
    if need > free:
        missing = f"too little disk by {shown_bytes(need - free)}; free that much, or {', '.join(REMEDIES)}"
        raise JournalError(f"disk: {what} {said}: {missing}")
    return said


def shown_bytes(number: float) -> str:
    """Return a number of bytes as people read it, in decimal units.

    >>> shown_bytes(5_380_600_320), shown_bytes(12_345_678), shown_bytes(71e9), shown_bytes(139_264), shown_bytes(9)
    ('5.4 GB', '12 MB', '71 GB', '139 kB', '1 kB')
    """
    if number >= 1e9:
        return f"{number / 1e9:.1f} GB" if number < 10e9 else f"{number / 1e9:.0f} GB"
    unit, name = (1e6, "MB") if number >= 0.9995e6 else (1e3, "kB")
    return f"{max(1, math.ceil(number / unit - 0.5))} {name}"


def announce_disk(run_dir: RunDir, model: Path, report: Callable[[str], None], *, tracked_here: bool = False) -> None:
    """Report the disk that a run needs and has, and refuse a run that will not fit.

    Args:
        run_dir: its folder; what an earlier session wrote there counts.
        model: folder of its initial policy.
        report: takes the line.
        tracked_here: whether MLflow keeps its artifacts on this disk.

    Raises:
        JournalError: it will not fit; the message names what needs less.
    """
    config = run_dir.read_config()
    weights = kept_weights(config, model)
    if weights is None:
        report(f"disk: how much the run needs is not known (no safetensors weights in {model})")
        return
    present = [folder_bytes(path) for path in list_checkpoints(run_dir.checkpoints)]
    need = disk_need(config, weights, present=present, tracked_here=tracked_here)
    report(f"disk: {require_disk('the run', need, run_dir.path)}")
