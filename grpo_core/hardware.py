"""What this machine is, as far as it decides the figures of a training. Imports no torch."""

import os
import platform
import subprocess
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


def thread_count(wanted: int | None) -> int:
    """Return the number of CPU threads of a training, which decides the order of floating-point sums.

    Args:
        wanted: `training.threads`; None = as many as the process may use.
    """
    return wanted or core_count()


def core_count() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0))


def processor() -> str:
    """Return the name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")] if cpuinfo.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor()


def environment() -> dict[str, str]:
    """Return those of VARIABLES that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def gpus() -> tuple[list[str], str | None]:
    """Return the names of the machine's NVIDIA GPUs and their driver's version.

    It asks the driver's own tool: torch would take memory of each GPU for the process that asks.
    """
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return [], None
    rows = [line.rpartition(",") for line in done.stdout.splitlines() if done.returncode == 0 and "," in line]
    return [name.strip() for name, _, _ in rows], rows[0][2].strip() if rows else None
