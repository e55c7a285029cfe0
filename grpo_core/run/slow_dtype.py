"""A dtype that is slow on this machine: a warning before the first step, not a surprise after an hour."""

from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.machine.gpus import gpus
from grpo_core.machine.hardware import CPUINFO, has_bfloat16_kernels


def slow_dtype_warnings(config: RunConfig, cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Return a warning where a run would compute in bfloat16 on a processor without fast products for it.

    Args:
        config: the run's; with `training.device` cuda, or auto on a machine with a GPU, the processor does not matter.
        cpuinfo: what Linux knows of the CPU.
    """
    if config.model.dtype != "bfloat16" or config.training.device == "cuda" or has_bfloat16_kernels(cpuinfo):
        return ()
    if config.training.device == "auto" and gpus()[0]:
        return ()
    return (
        "model.dtype: bfloat16 is several times slower than float32 on this processor, which has no AVX-512 "
        "(products took 7 times as long on one such machine); add model.dtype=float32",
    )
