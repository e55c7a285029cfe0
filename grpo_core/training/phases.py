"""The phases of a step: the seconds of each, its peak of memory on a GPU, and the error where there is too little of it."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from grpo_core.errors import MemoryFullError, cause
from grpo_core.policy.device import is_out_of_memory

CPU = torch.device("cpu")


class Clock:
    """Adds up the seconds of a step under names, `with clock("rollout"): ...`, and holds its peaks of memory.

    A GPU works behind the host's back: its clock waits for it at the end of a phase, or the next phase would be charged.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        """Start the step's clock."""
        self._device = device
        self._start = self._now()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """By phase; 0 for one that did not happen."""
        self.peaks: dict[str, int] = {}
        """Bytes that tensors had on a GPU at most, by phase; nothing on a CPU."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count what happens inside towards `phase`.

        Raises:
            MemoryFullError: there was too little memory for it.
        """
        started = self._now()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        try:
            yield
        except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is the former
            if is_out_of_memory(error):
                raise MemoryFullError(f"out of memory in the phase {phase} ({cause(error, 200)})", phase=phase) from error
            raise
        finally:
            self.seconds[phase] += self._now() - started
            if self._device.type == "cuda":
                self.peaks[phase] = max(self.peaks.get(phase, 0), torch.cuda.max_memory_allocated(self._device))

    def total(self) -> float:
        """Return the seconds since the clock was made."""
        return self._now() - self._start

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
