"""A dtype that is slow on this machine: a warning before the first step, not a surprise after an hour."""

from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.machine.hardware import CPUINFO, has_bfloat16_kernels
from grpo_core.run.memory_fit import will_use_gpu


def slow_dtype_warnings(config: RunConfig, cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Return a warning where a run would compute in bfloat16 on a processor without fast products for it.

    Args:
        config: the run's; where it will use a GPU, the processor does not matter.
        cpuinfo: what Linux knows of the CPU.
    """
    if config.model.dtype != "bfloat16" or has_bfloat16_kernels(cpuinfo) or will_use_gpu(config):
        return ()
    return (
        "model.dtype: bfloat16 is several times slower than float32 on this processor, which has no AVX-512 "
        "(products took 7 times as long on one such machine); add model.dtype=float32",
    )
