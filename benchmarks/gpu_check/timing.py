"""Seconds of work on a device that works behind the host's back, and the device of a part."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu_check.part import Context
from grpo_core.policy.device import choose_kernels, held_device, pick_device


@contextlib.contextmanager
def opened_device(context: Context) -> Iterator[torch.device]:
    """Yield the device of the check, held against other runs of this machine, with this project's choice of kernels."""
    device = pick_device(context.device)
    choose_kernels(deterministic=False)
    with held_device(device):
        yield device


def wait(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median of several calls, after two that do not count."""
    for _ in range(2):
        work()
    return statistics.median(seconds_of(work, device) for _ in range(repeats))
