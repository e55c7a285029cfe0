"""How much disk a run needs, known before it starts: from the number of its parameters and its configuration.

    checkpoint = 4 bytes x parameters x (policy, two moments of AdamW; the reference once a sync made it differ)
    need       = (keep_checkpoints + one being written + the best) x checkpoint + 4 bytes x parameters, of the initial policy

All weights that are kept are fp32. With `model.lora` they are the adapter's: its base is `model.source`. Activations and the
model's own files are no part of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.derived import reference_moves
from grpo_core.errors import JournalError
from grpo_core.generation.vllm.launch import server_bytes
from grpo_core.machine.disk import folder_bytes, free_bytes
from grpo_core.machine.hardware import available_memory
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.folder import RunDir
from grpo_core.run.model_shape import adapter_size, count_parameters, shape_of

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
    kept = min(config.training.keep_checkpoints + 1 + evaluates, written) * checkpoint_bytes(config, weights)
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


def announce_memory(run_dir: RunDir, model: Path, report: Callable[[str], None]) -> None:
    """Report what a vLLM that the run starts takes beside its models.

    Args:
        run_dir: its folder.
        model: folder of its initial policy.
        report: takes each line.
    """
    config, num_parameters = run_dir.read_config(), count_parameters(model) or 0
    if config.rollout.engine != "vllm" or config.rollout.vllm.url is not None:
        return
    need, free = server_bytes(num_parameters, config.model.dtype, config.rollout.vllm.kv_cache_gib), available_memory()
    doubt = "" if need < free else "; that will not fit: lower rollout.vllm.kv_cache_gib, or use rollout.engine embedded"
    report(f"memory: vLLM takes up to {shown_bytes(need)} beside the training, {shown_bytes(free)} are available{doubt}")
