"""Part `vllm-server`: steps whose completions come from a server that the run starts."""

from benchmarks.gpu_check.part import Context, Result
from benchmarks.gpu_check.vllm_trainings import vllm_steps


def run(context: Context) -> Result:
    """Train in fp32, where server and trainer must agree, and in bf16."""
    return vllm_steps(context, {"fp32": ("float32", {"mode": "server"}), "bf16": ("bfloat16", {"mode": "server"})})
