"""What a run asks of this machine: printed before anything costly, and refused where it will not fit."""

from collections.abc import Callable
from pathlib import Path

from grpo_core.generation.vllm.launch import server_bytes
from grpo_core.machine.disk import folder_bytes
from grpo_core.machine.hardware import available_memory
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.disk_need import disk_need, kept_weights, require_disk, shown_bytes
from grpo_core.run.folder import RunDir
from grpo_core.run.model_shape import count_parameters


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
    present = [folder_bytes(path) for path in list_checkpoints(run_dir.checkpoints)]
    need = disk_need(config, weights, present=present, tracked_here=artifacts is not None)
    report(f"disk: {require_disk('the run', need, run_dir.path)}")


def announce_memory(run_dir: RunDir, model: Path, report: Callable[[str], None]) -> None:
    """Report what a vLLM that the run starts takes beside its models.

    Args:
        run_dir: its folder.
        model: folder of its initial policy.
        report: takes each line.
    """
    config, num_parameters = run_dir.read_config(), count_parameters(model)
    if config.rollout.engine != "vllm" or config.rollout.vllm.url is not None:
        return
    if num_parameters is None:
        report(f"memory: what vLLM takes is not known (no safetensors weights in {model})")
        return
    need, free = server_bytes(num_parameters, config.model.dtype, config.rollout.vllm.kv_cache_gib), available_memory()
    doubt = "" if need < free else "; that will not fit: lower rollout.vllm.kv_cache_gib, or use rollout.engine embedded"
    report(f"memory: vLLM takes up to {shown_bytes(need)} beside the training, {shown_bytes(free)} are available{doubt}")
