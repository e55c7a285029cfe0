"""Part `device`: what is here, and how fast it multiplies and copies at best."""

from collections.abc import Callable

import torch

from benchmarks.gpu_check.devices import TorchDevices, look
from benchmarks.gpu_check.part import Context, Figure, Result, Table
from benchmarks.gpu_check.timing import median_seconds

REPEATS = 10
PRECISIONS: dict[str, tuple[torch.dtype, str]] = {
    "fp32": (torch.float32, "highest"),
    "tf32": (torch.float32, "high"),
    "bf16": (torch.bfloat16, "highest"),
}
"""Type of the matrices and torch's precision of float32 products."""


def run(context: Context) -> Result:
    """Measure one size; random numbers, as products of zeros can be faster."""
    device, machine = torch.device(context.device), look(TorchDevices())
    size = 256 if context.small else 8192
    names = PRECISIONS if device.type == "cuda" else {key: value for key, value in PRECISIONS.items() if key != "tf32"}
    products = {f"{name} products, TFLOP/s": _product(size, *names[name], device) for name in names}
    figures: dict[str, Figure] = {
        **products,
        "copies on the device, GB/s read and written": _copy(size, device),
        "multiprocessors": torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else None,
        "host threads": torch.get_num_threads(),
    }
    rows = tuple((found.name, found.capability, found.total / 1e9, found.free / 1e9) for found in machine.devices)
    table = Table(title="Devices", head=("name", "capability", "memory, GB", "free, GB"), rows=rows)
    text = ", ".join(f"{name} {products[f'{name} products, TFLOP/s']:.3g}" for name in names)
    return Result(verdict="measured", text=f"{text} TFLOP/s", figures=figures, tables=(table,) if rows else ())


def _product(size: int, dtype: torch.dtype, precision: str, device: torch.device) -> float:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        return _rate(2 * size**3 / 1e12, lambda: left @ right, device)
    finally:
        torch.set_float32_matmul_precision(before)


def _copy(size: int, device: torch.device) -> float:
    source = torch.randn(4 * size, size, device=device)
    target = torch.empty_like(source)
    return _rate(2 * source.nbytes / 1e9, lambda: target.copy_(source), device)


def _rate(work: float, call: Callable[[], object], device: torch.device) -> float:
    return work / median_seconds(call, device, REPEATS)
