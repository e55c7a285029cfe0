"""What this machine is, as far as it decides the figures of a training. Imports no torch."""

import os
import platform
from pathlib import Path

VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTORCH_CUDA_ALLOC_CONF",
)
"""Environment variables that choose kernels, devices or the order of sums."""
CPUINFO = Path("/proc/cpuinfo")
TILE_LEAF = 0x1D
"""CPUID leaf that describes the tiles of AMX."""


def core_count() -> int:
    """Return how many CPU cores this process may use: the threads of a training that does not set `training.threads`."""
    return len(os.sched_getaffinity(0))


def processor() -> str:
    """Return the name of the CPU."""
    return _cpu_facts(CPUINFO).get("model name") or platform.processor()


def available_memory() -> int:
    """Return how many bytes of memory a new process can have without swapping."""
    import psutil  # not at the top: vLLM's container has no package of the trainer's (docker/vllm_server.py)

    return int(psutil.virtual_memory().available)


def kernel_variables() -> dict[str, str]:
    """Return those of VARIABLES that are set, or will be by `avoid_broken_kernels`."""
    return {**needed_variables(), **{name: os.environ[name] for name in VARIABLES if name in os.environ}}


def nccl_variables() -> dict[str, str]:
    """Return the environment variables that NCCL reads: they choose how several GPUs add up, and with it the order of sums."""
    return {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}


def avoid_broken_kernels() -> None:
    """Set `needed_variables` for this process, unless the user has set them; call it before torch computes anything."""
    for name, value in needed_variables().items():
        os.environ.setdefault(name, value)


def needed_variables(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Return the variables without which products in bfloat16 would kill the process on this CPU.

    Some virtual machines announce AMX and hide the CPUID leaf that describes its tiles. oneDNN then configures none, and its
    first product ends in SIGILL; without AMX it uses AVX-512.

    Args:
        cpuinfo: what Linux knows of the CPU.
    """
    facts = _cpu_facts(cpuinfo)
    hides_tiles = "amx_tile" in facts.get("flags", "").split() and int(facts.get("cpuid level", TILE_LEAF)) < TILE_LEAF
    return {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"} if hides_tiles else {}


def has_bfloat16_kernels(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether oneDNN has fast products in bfloat16 for this CPU; True where that is not known.

    On x86 it needs AVX-512, which also serves processors without instructions for bfloat16 itself, or AVX-NE-CONVERT. With
    AVX2 alone torch takes a path that is slower than float32.

    Args:
        cpuinfo: what Linux knows of the CPU.
    """
    flags = _cpu_facts(cpuinfo).get("flags", "").split()
    return not flags or not {"avx512bw", "avx_ne_convert"}.isdisjoint(flags)


def _cpu_facts(cpuinfo: Path) -> dict[str, str]:
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    return {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    }
