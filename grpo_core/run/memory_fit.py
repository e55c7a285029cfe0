"""Whether a run fits the memory of its device, and with which settings it would."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from grpo_core.config import RunConfig
from grpo_core.machine.gpus import gpu_memory
from grpo_core.machine.hardware import available_memory
from grpo_core.policy.outline import Outline
from grpo_core.policy.sources.find import model_here
from grpo_core.run.disk_need import shown_bytes
from grpo_core.run.memory_need import MemoryNeed, acting_on, memory_need, states_of
from grpo_core.run.model_shape import KNOWN_SHAPES, ModelShape, shape_of

TOKENS_AT_A_TIME = 256
"""`training.microbatch_tokens` is proposed as a multiple of this."""
SETTINGS = {
    "rollout": "training.rollout_rows",
    "logps": "training.microbatch_tokens",
    "update": "training.microbatch_tokens",
}
"""What decides the memory of a phase."""
CHECKPOINTING = "training.gradient_checkpointing"
GPU_SHARE, GPU_TAKEN = 0.92, 800_000_000
"""Of a GPU's memory: what fragments leave, less what CUDA and its libraries take."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a run needs beside what there is."""

    need: MemoryNeed
    available: int | None
    """Bytes for tensors; None where that is not known."""
    states_formula: str
    """What stays for the whole run, with its numbers (`States`)."""
    fitting: Mapping[str, int | None]
    """By phase that does not fit: the largest value of its setting (`SETTINGS`) that would; None = none would."""
    offloaded_states: int | None = None
    """Bytes of the states with `reference.offload`, where that is not set and would do something."""
    checkpointed_tokens: int | None = None
    """Where the update does not fit: the largest `training.microbatch_tokens` that would with `gradient_checkpointing`."""

    @property
    def too_large(self) -> tuple[str, ...]:
        """The phases that do not fit."""
        return tuple(self.fitting)

    def as_json(self) -> dict[str, object]:
        """Return it for a machine to read."""
        return {
            "states": self.need.states,
            "states_formula": self.states_formula,
            **self.need.phases(),
            "available": self.available,
            "too_large": list(self.too_large),
            "remedies": [self._remedy(phase) for phase, value in self.fitting.items() if value is not None],
            "checkpointed_tokens": self.checkpointed_tokens,
        }

    def __str__(self) -> str:
        """Return one line about the need."""
        phases = ", ".join(f"{phase} {shown_bytes(needed)}" for phase, needed in self.need.phases().items())
        there = "" if self.available is None else f"; {shown_bytes(self.available)} are there"
        return f"states {shown_bytes(self.need.states)}; at most, with them: {phases}{there}"

    def warnings(self) -> tuple[str, ...]:
        """Return a warning for each phase that does not fit."""
        return tuple(
            f"memory: the phase {phase} needs {shown_bytes(self.need.phases()[phase])}, and {shown_bytes(self.available or 0)} "
            f"are there; {self._remedy(phase)}"
            for phase in self.too_large
        )

    def _remedy(self, phase: str) -> str:
        value = self.fitting[phase]
        smaller = f"no {SETTINGS[phase]} is small enough" if value is None else f"set {SETTINGS[phase]}={value}"
        if phase != "update" or self.checkpointed_tokens is None:
            return smaller
        return f"{smaller}, or {CHECKPOINTING}=true with {SETTINGS[phase]}={self.checkpointed_tokens}"


def shape_for(config: RunConfig, outline: Outline | None = None) -> ModelShape | None:
    """Return the shape of a run's model: from its files if they are here, else of a model that is known; None = neither."""
    folder = model_here(config.model.source)
    return KNOWN_SHAPES.get(config.model.source) if folder is None else shape_of(folder, outline)


def fit_of(config: RunConfig, shape: ModelShape, device_memory: int | None = None) -> Fit:
    """Compare what a run needs with its device.

    Args:
        config: of the run.
        shape: of its model.
        device_memory: bytes of a GPU that is not here; None = the device that the run would take here.
    """
    on_gpu = device_memory is not None or will_use_gpu(config)
    config = acting_on(config, on_gpu=on_gpu)
    total = device_memory if device_memory is not None else gpu_memory() if on_gpu else available_memory()
    available = total if total is None or not on_gpu else int(GPU_SHARE * total) - GPU_TAKEN
    need = memory_need(config, shape, padded=on_gpu)
    fitting = {} if available is None else _fitting(config, shape, need, available, padded=on_gpu)
    has_remedy = "update" in fitting and not config.training.gradient_checkpointing
    return Fit(
        need=need,
        available=available,
        states_formula=states_of(config, shape).formula,
        fitting=fitting,
        offloaded_states=_offloaded_states(config, shape) if on_gpu else None,
        checkpointed_tokens=_checkpointed_tokens(config, shape, available or 0, padded=on_gpu) if has_remedy else None,
    )


def will_use_gpu(config: RunConfig) -> bool:
    """Return whether a run would take a GPU of this machine."""
    device = config.training.device
    return device == "cuda" or (device == "auto" and not version("torch").endswith("+cpu") and gpu_memory() is not None)


def _fitting(config: RunConfig, shape: ModelShape, need: MemoryNeed, available: int, *, padded: bool) -> dict[str, int | None]:
    """Return the largest setting with which each phase that does not fit would."""
    fitting = {}
    for phase, needed in need.phases().items():
        key = SETTINGS[phase]
        unit = config.rollout.group_size if phase == "rollout" else TOKENS_AT_A_TIME
        units = range(1, getattr(config.training, key.removeprefix("training.")) // unit + 1)

        def is_too_large(number: int, phase: str = phase, key: str = key, unit: int = unit) -> bool:
            return memory_need(_with(config, key, number * unit), shape, padded=padded).phases()[phase] > available

        if needed > available:
            fitting[phase] = bisect_left(units, True, key=is_too_large) * unit or None
    return fitting


def _checkpointed_tokens(config: RunConfig, shape: ModelShape, available: int, *, padded: bool) -> int | None:
    """Return the largest `training.microbatch_tokens` with which an update fits if layers are computed again; None = none."""
    again = _with(config, CHECKPOINTING, True)
    need = memory_need(again, shape, padded=padded)
    return _fitting(again, shape, need, available, padded=padded).get("update", config.training.microbatch_tokens)


def _offloaded_states(config: RunConfig, shape: ModelShape) -> int | None:
    if config.reference.offload or config.model.lora is not None or config.training.engine == "trl":
        return None
    reference = config.reference.model_copy(update={"offload": True})
    return states_of(config.model_copy(update={"reference": reference}), shape).bytes


def _with(config: RunConfig, key: str, value: object) -> RunConfig:
    """Return a configuration with another value of a key of `training`."""
    training = config.training.model_copy(update={key.removeprefix("training."): value})
    return config.model_copy(update={"training": training})
