"""Whether a run fits the memory of its device, and with which settings it would."""

from collections.abc import Callable
from dataclasses import dataclass

from grpo_core.config import RunConfig
from grpo_core.machine.hardware import available_memory, gpu_memory
from grpo_core.policy.sources.find import model_here
from grpo_core.run.disk_need import shown_bytes
from grpo_core.run.memory_need import KNOWN_SHAPES, MemoryNeed, ModelShape, memory_need, shape_of

TOKENS_AT_A_TIME = 256
"""`training.microbatch_tokens` is proposed as a multiple of this."""
GPU_SHARE, GPU_TAKEN = 0.92, 800_000_000
"""Of a GPU's memory: what fragments leave, less what CUDA and its libraries take."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a run needs beside what there is."""

    need: MemoryNeed
    available: int | None
    """Bytes for tensors; None where that is not known."""
    remedies: tuple[str, ...]
    """Settings with which the phases that do not fit would; empty where all fit, or none would help."""

    @property
    def too_large(self) -> tuple[str, ...]:
        """The phases that do not fit."""
        if self.available is None:
            return ()
        return tuple(phase for phase, needed in self.need.phases().items() if needed > self.available)

    def as_json(self) -> dict[str, object]:
        """Return it for a machine to read."""
        return {
            "states": self.need.states,
            **self.need.phases(),
            "available": self.available,
            "too_large": list(self.too_large),
            "remedies": list(self.remedies),
        }

    def __str__(self) -> str:
        """Return one line about the need."""
        phases = ", ".join(f"{phase} {shown_bytes(needed)}" for phase, needed in self.need.phases().items())
        there = "" if self.available is None else f"; {shown_bytes(self.available)} are there"
        return f"states {shown_bytes(self.need.states)}; at most, with them: {phases}{there}"

    def warnings(self) -> tuple[str, ...]:
        """Return a warning for each phase that does not fit."""
        what = f"; set {' and '.join(self.remedies)}" if self.remedies else "; no micro-batch is small enough"
        return tuple(
            f"memory: the phase {phase} needs {shown_bytes(self.need.phases()[phase])}, and {shown_bytes(self.available or 0)} "
            f"are there{what}"
            for phase in self.too_large
        )


def shape_for(config: RunConfig) -> ModelShape | None:
    """Return the shape of a run's model: from its files if they are here, else of a model that is known; None = neither."""
    folder = model_here(config.model.source)
    return KNOWN_SHAPES.get(config.model.source) if folder is None else shape_of(folder)


def fit_of(config: RunConfig, shape: ModelShape, device_memory: int | None = None) -> Fit:
    """Compare what a run needs with its device.

    Args:
        config: of the run.
        shape: of its model.
        device_memory: bytes of a GPU that is not here; None = the device that the run would take here.
    """
    on_gpu = device_memory is not None or will_use_gpu(config)
    total = device_memory if device_memory is not None else gpu_memory() if on_gpu else available_memory()
    available = total if total is None or not on_gpu else int(GPU_SHARE * total) - GPU_TAKEN
    need = memory_need(config, shape, padded=on_gpu)
    remedies = () if available is None else _remedies(config, shape, need, available, padded=on_gpu)
    return Fit(need=need, available=available, remedies=remedies)


def will_use_gpu(config: RunConfig) -> bool:
    """Return whether a run would take a GPU of this machine."""
    return config.training.device == "cuda" or (config.training.device == "auto" and gpu_memory() is not None)


def _remedies(config: RunConfig, shape: ModelShape, need: MemoryNeed, available: int, *, padded: bool) -> tuple[str, ...]:
    training = config.training

    def needs(**changed: int) -> MemoryNeed:
        smaller = config.model_copy(update={"training": training.model_copy(update=changed)})
        return memory_need(smaller, shape, padded=padded)

    def fits(tokens: int) -> bool:
        smaller = needs(microbatch_tokens=tokens * TOKENS_AT_A_TIME)
        return max(smaller.update, smaller.logps) <= available

    group = config.rollout.group_size
    found = []
    if max(need.update, need.logps) > available:
        tokens = _largest(fits, training.microbatch_tokens // TOKENS_AT_A_TIME)
        found.append(None if tokens is None else f"training.microbatch_tokens={tokens * TOKENS_AT_A_TIME}")
    if need.rollout > available:
        groups = _largest(
            lambda number: needs(rollout_rows=number * group).rollout <= available, training.rollout_rows // group
        )
        found.append(None if groups is None else f"training.rollout_rows={groups * group}")
    return tuple(remedy for remedy in found if remedy is not None) if None not in found else ()


def _largest(fits: Callable[[int], bool], most: int) -> int | None:
    """Return the largest number from 1 to `most` that fits, where all smaller ones do; None if 1 does not.

    >>> _largest(lambda number: number <= 37, 100), _largest(lambda number: number <= 37, 20), _largest(lambda number: False, 9)
    (37, 20, None)
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low or None
