"""What a run asks of this machine beside disk: printed before anything is started."""

from pathlib import Path

import psutil

from grpo_core.generation.vllm.memory import server_bytes
from grpo_core.run.disk_need import count_parameters, shown_bytes
from grpo_core.run.folder import RunDir
from grpo_core.run.slow_dtype import slow_dtype_warnings
from tasks.run.progress import say


def say_slow_dtype(run_path: Path) -> None:
    """Print a warning where the run's dtype is slow on this processor."""
    for warning in slow_dtype_warnings(RunDir(run_path).read_config()):
        say(f"warning: {warning}")


def say_memory(run_path: Path, model: Path) -> None:
    """Print what a vLLM that the run starts will take, and whether that is there; nothing for other runs.

    Args:
        run_path: its folder.
        model: folder of its initial policy.
    """
    config = RunDir(run_path).read_config()
    if config.rollout.engine != "vllm" or config.rollout.vllm.url is not None:
        return
    num_parameters = count_parameters(model)
    if num_parameters is None:
        say(f"memory: what vLLM takes is not known (no safetensors weights in {model})")
        return
    need = server_bytes(num_parameters, config.model.dtype, config.rollout.vllm.kv_cache_gib)
    free = psutil.virtual_memory().available
    doubt = "" if need < free else "; that will not fit: lower rollout.vllm.kv_cache_gib, or use rollout.engine embedded"
    say(f"memory: vLLM takes up to {shown_bytes(need)} beside the training, {shown_bytes(free)} are available{doubt}")
