"""What a run asks of this machine: printed before anything costly, and refused where it will not fit."""

from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.generation.vllm.launch import server_bytes
from grpo_core.machine.disk import folder_bytes
from grpo_core.machine.hardware import available_memory
from grpo_core.policy.saved import list_checkpoints, step_of
from grpo_core.run.disk_need import (
    REMEDIES,
    KeptWeights,
    checkpoint_bytes,
    describe_need,
    disk_need,
    kept_weights,
    refuse_too_little,
    shown_bytes,
)
from grpo_core.run.folder import RunDir
from grpo_core.run.model_shape import count_parameters

LARGE_COPY_BYTES = 500_000_000
"""Smaller ones are not worth a line."""


def announce_disk(run_dir: RunDir, model: Path, artifacts: Path | None, report: Callable[[str], None]) -> None:
    """Report the disk that a run needs and has, and refuse a run that will not fit.

    Args:
        run_dir: its folder; what an earlier session wrote there counts.
        model: folder of its initial policy.
        artifacts: of MLflow, where they are on a disk of this machine; None = elsewhere, or none are kept.
        report: takes the line.

    Raises:
        JournalError: it will not fit; the message names what needs less.
    """
    config = run_dir.read_config()
    weights = kept_weights(config, model)
    if weights is None:
        report(f"disk: how much the run needs is not known (no safetensors weights in {model})")
        return
    checkpoints = list_checkpoints(run_dir.checkpoints)
    report(f"disk: {require_disk(config, weights, run_dir.path, artifacts, checkpoints)}")


def require_disk(
    config: RunConfig, weights: KeptWeights, folder: Path, artifacts: Path | None, checkpoints: Sequence[Path] = ()
) -> str:
    """Return in words how much disk a run needs and has.

    Args:
        config: of the run.
        weights: that it keeps.
        folder: of the run; need not exist.
        artifacts: as in `announce_disk`.
        checkpoints: that it has written, oldest first.

    Raises:
        JournalError: it will not fit; the message names what needs less.
    """
    need = disk_need(
        config,
        weights,
        from_step=step_of(checkpoints[-1]) if checkpoints else 0,
        present=[folder_bytes(path) for path in checkpoints],
        tracked_here=artifacts is not None,
    )
    what, disks = describe_need(need, folder)
    refuse_too_little(f"disk: the run {what}", disks, REMEDIES[2:] if checkpoints else REMEDIES)
    return what


def announce_memory(run_dir: RunDir, model: Path, report: Callable[[str], None]) -> None:
    """Report what a run takes beside its models: the copies of checkpoints where they are large, a vLLM that it starts.

    Args:
        run_dir: its folder.
        model: folder of its initial policy.
        report: takes each line.
    """
    config, num_parameters = run_dir.read_config(), count_parameters(model)
    weights = kept_weights(config, model)
    if weights is not None and (copied := checkpoint_bytes(config, weights)) >= LARGE_COPY_BYTES:
        report(f"memory: checkpoints are written beside the training, from a copy that takes {shown_bytes(copied)}")
    if config.rollout.engine != "vllm" or config.rollout.vllm.url is not None:
        return
    if num_parameters is None:
        report(f"memory: what vLLM takes is not known (no safetensors weights in {model})")
        return
    need, free = server_bytes(num_parameters, config.model.dtype, config.rollout.vllm.kv_cache_gib), available_memory()
    doubt = "" if need < free else "; that will not fit: lower rollout.vllm.kv_cache_gib, or use rollout.engine embedded"
    report(f"memory: vLLM takes up to {shown_bytes(need)} beside the training, {shown_bytes(free)} are available{doubt}")
