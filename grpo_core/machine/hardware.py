"""What this machine is, as far as it decides the figures of a training. Imports no torch."""

import os
import platform
import re
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
CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
TILE_LEAF = 0x1D
"""CPUID leaf that describes the tiles of AMX."""


def core_count() -> int:
    """Return how many CPU cores this process may use: the threads of a training that does not set `training.threads`."""
    return len(os.sched_getaffinity(0))


def processor() -> str:
    """Return the name of the CPU."""
    return _cpu_facts(CPUINFO).get("model name") or platform.processor()


def available_memory(meminfo: Path = MEMINFO) -> int | None:
    """Return how many bytes of memory a new process can have without swapping; None where that is not known.

    Args:
        meminfo: what Linux knows of the memory.
    """
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    found = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return None if found is None else int(found[1]) * 1024  # the file counts in KiB


def kernel_variables() -> dict[str, str]:
    """Return those of VARIABLES that are set, or will be by `avoid_broken_kernels`."""
    return {**needed_variables(), **{name: os.environ[name] for name in VARIABLES if name in os.environ}}


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
    """Return what is known of the first CPU."""
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    return {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    }


def gpu_memory() -> int | None:
    """Return the bytes of the smallest NVIDIA GPU, or part of one (MIG), that CUDA_VISIBLE_DEVICES lets this process see.

    None where there is none. A part that no variable names is taken for the whole.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = None if visible is None else [name.strip() for name in visible.split(",")]
    if seen and seen[0].startswith("MIG-"):  # CUDA sees one part at most
        return _part_memory(seen[0])
    known = [
        int(mebibytes) * 2**20
        for index, uuid, mebibytes in _ask_driver("index", "uuid", "memory.total")
        if mebibytes.isdecimal() and (seen is None or index in seen or any(name and uuid.startswith(name) for name in seen))
    ]
    return min(known, default=None)


def _part_memory(uuid: str) -> int | None:
    """Return the bytes of a part of a GPU, which its profile names: `MIG 1g.10gb  Device 0: (UUID: MIG-...)`."""
    lines = (line for line in _driver_tool("-L").splitlines() if f"(UUID: {uuid})" in line)
    profile = next((re.search(r"MIG \S*?(\d+)gb\b", line) for line in lines), None)
    return None if profile is None else int(profile[1]) * 2**30


def gpus() -> tuple[list[str], str | None]:
    """Return the names of the machine's NVIDIA GPUs and their driver's version."""
    rows = _ask_driver("name", "driver_version")
    return [name for name, _ in rows], rows[0][1] if rows else None


def _ask_driver(*fields: str) -> list[list[str]]:
    """Return the fields of each NVIDIA GPU, none where there is no driver."""
    output = _driver_tool(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    rows = ([cell.strip() for cell in line.rsplit(",", len(fields) - 1)] for line in output.splitlines())
    return [row for row in rows if len(row) == len(fields)]


def _driver_tool(*arguments: str) -> str:
    """Return what nvidia-smi prints, nothing where it fails: torch would take memory of each GPU for the process that asks."""
    try:
        command = ["nvidia-smi", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
