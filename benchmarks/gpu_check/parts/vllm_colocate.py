"""Part `vllm-colocate`: steps with vLLM in the training process."""

from typing import Any

from benchmarks.gpu_check.part import Context, Result
from benchmarks.gpu_check.vllm_trainings import vllm_steps


def run(context: Context) -> Result:
    """Train in fp32; on a GPU also with vLLM asleep between rollouts."""
    modes: dict[str, tuple[str, dict[str, Any]]] = {"fp32": ("float32", {"mode": "colocate"})}
    if context.device == "cuda":
        modes["fp32, asleep between rollouts"] = ("float32", {"mode": "colocate", "sleep": True})
    return vllm_steps(context, modes)
