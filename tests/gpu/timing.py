"""Seconds of work on a device that works behind the host's back."""

import statistics
import time
from collections.abc import Callable

import torch


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - began


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    for _ in range(2):
        work()
    return statistics.median(seconds_of(work, device) for _ in range(repeats))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
