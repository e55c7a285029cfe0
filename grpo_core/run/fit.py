"""Whether a run fits this machine: a slot and a GPU for each of its processes, and the memory of its device.

Where the memory does not do, with which settings it would: smaller passes, or more GPUs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.derived import weight_shards
from grpo_core.config.limits import process_limits, trl_limits
from grpo_core.errors import ConfigError
from grpo_core.generation.vllm.launch import server_bytes
from grpo_core.machine.gpus import gpu_memory, visible_gpus
from grpo_core.machine.hardware import CPUINFO, available_memory, has_bfloat16_kernels
from grpo_core.machine.slots import require_slots, slot_limit
from grpo_core.parallel import processes_here
from grpo_core.run.folder import RunDir, batch_limits
from grpo_core.run.memory import MemoryNeed, acting_on, changed, memory_need, states_of
from grpo_core.run.sizes import KeptWeights, ModelShape, checkpoint_bytes, count_parameters, shape_of, shown_bytes

TOKENS_AT_A_TIME = 256
"""`training.microbatch_tokens` is proposed as a multiple of this."""
SETTINGS = {
    "rollout": "training.rollout_rows",
    "logps": "training.microbatch_tokens",
    "update": "training.microbatch_tokens",
}
"""What decides the memory of a phase."""
GPU_SHARE, GPU_TAKEN = 0.92, 800_000_000
"""Of a GPU's memory: what fragments leave, less what CUDA and its libraries take."""
GPUS = (2, 4, 8, 16, 32, 64)
"""On how many of them a run is proposed."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What each process of a run needs beside what there is: `available` bytes for tensors, None where that is not known.

    `fitting` holds the phases that do not fit, each with the largest value of its setting (`SETTINGS`) that would, None = none
    would. `offloaded_states` are the bytes of the states with `reference.offload`, where that is not set and would act;
    `checkpointed_update` those of an update that does not fit, with `training.gradient_checkpointing`.

    `spread` are settings of `training` with which a run that does not fit would, on as few GPUs as possible. `snapshot` are the
    bytes of host memory that the first process needs to save weights that are spread, 0 where none are; `host` what is there.
    """

    need: MemoryNeed
    available: int | None
    states_formula: str
    fitting: Mapping[str, int | None]
    offloaded_states: int | None = None
    checkpointed_update: int | None = None
    processes: int = 1
    shards: int = 1
    on_gpu: bool = False
    spread: Mapping[str, int] = field(default_factory=dict)
    snapshot: int = 0
    host: int | None = None

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
            "checkpointed_update": self.checkpointed_update,
            "processes": self.processes,
            "shards": self.shards,
            "snapshot": self.snapshot,
            "spread": dict(self.spread),
        }

    def __str__(self) -> str:
        """Return one line about the need."""
        phases = ", ".join(f"{phase} {shown_bytes(needed)}" for phase, needed in self.need.phases().items())
        there = "" if self.available is None else f"; {shown_bytes(self.available)} are there"
        each = ""
        if self.processes > 1:
            each = f"per {'GPU' if self.on_gpu else 'process'} ({self.processes} processes, {self.shards} shards): "
        return f"{each}states {shown_bytes(self.need.states)}; at most, with them: {phases}{there}"

    def warnings(self) -> tuple[str, ...]:
        """Return a warning for each phase that does not fit, and for a snapshot that the host has no memory for."""
        lacking = self.host is not None and self.snapshot > self.host
        return (
            *(
                f"memory: the phase {phase} needs {shown_bytes(self.need.phases()[phase])}, and "
                f"{shown_bytes(self.available or 0)} are there; {self._remedy(phase)}{self.on_more}"
                for phase in self.too_large
            ),
            *((f"memory: {self.saving}, and {shown_bytes(self.host or 0)} are there",) if lacking else ()),
        )

    @property
    def saving(self) -> str:
        """What the first process needs to save weights that are spread."""
        return f"the first process needs {shown_bytes(self.snapshot)} of host memory while it writes a checkpoint"

    @property
    def on_more(self) -> str:
        """On how many GPUs, and with which settings, it fits; empty where on none, or where it fits as it is."""
        settings = " ".join(f"training.{key}={value}" for key, value in self.spread.items())
        return f"; it fits on {self.spread.get('processes', self.processes)} GPUs with {settings}" if settings else ""

    def _remedy(self, phase: str) -> str:
        value = self.fitting[phase]
        smaller = f"no {SETTINGS[phase]} is small enough" if value is None else f"set {SETTINGS[phase]}={value}"
        if phase != "update" or self.checkpointed_update is None:
            return smaller
        return (
            f"{smaller}, or training.gradient_checkpointing=true, with which it needs {shown_bytes(self.checkpointed_update)}"
        )


def fit_of(config: RunConfig, shape: ModelShape, device_memory: int | None = None) -> Fit:
    """Compare what a run needs with its device.

    Args:
        config: of the run.
        shape: of its model.
        device_memory: bytes of a GPU that is not here; None = the device that the run would take here.
    """
    on_gpu = device_memory is not None or will_use_gpu(config)
    config, host = acting_on(config, on_gpu=on_gpu), available_memory()
    processes, shards = config.training.processes, weight_shards(config)
    here = gpu_memory() if on_gpu else host and host // processes_here(processes)
    total = here if device_memory is None else device_memory
    available = total if total is None or not on_gpu else int(GPU_SHARE * total) - GPU_TAKEN
    need, (_, formula) = memory_need(config, shape, padded=on_gpu), states_of(config, shape)
    too_large = [] if available is None else [phase for phase, needed in need.phases().items() if needed > available]
    offload = not (config.reference.offload or config.model.lora or config.training.engine == "trl" or shards > 1) and on_gpu
    checkpointing = "update" in too_large and not config.training.gradient_checkpointing
    return Fit(
        need=need,
        available=available,
        states_formula=formula,
        fitting={phase: _largest(config, shape, phase, available or 0, padded=on_gpu) for phase in too_large},
        offloaded_states=states_of(changed(config, "reference", offload=True), shape)[0] if offload else None,
        checkpointed_update=memory_need(changed(config, "training", gradient_checkpointing=True), shape, padded=on_gpu).update
        if checkpointing
        else None,
        processes=processes,
        shards=shards,
        on_gpu=on_gpu,
        spread=next(_spread(config, shape, available or 0), {}) if too_large and on_gpu else {},
        snapshot=checkpoint_bytes(config, KeptWeights(policy=shape.parameters, reference=shape.parameters)) * (shards > 1),
        host=host if device_memory is None else None,
    )


def will_use_gpu(config: RunConfig) -> bool:
    """Return whether a run would take a GPU of this machine."""
    device = config.training.device
    return device == "cuda" or (device == "auto" and not version("torch").endswith("+cpu") and gpu_memory() is not None)


def require_places(configs: Iterable[RunConfig]) -> None:
    """Refuse runs that could never start here.

    Raises:
        ConfigError: one has more processes on this machine than there are slots, or visible GPUs for a run that uses them.
    """
    for config in configs:
        count, gpus = processes_here(config.training.processes), len(visible_gpus())
        if 0 < gpus < count and will_use_gpu(config):
            raise ConfigError(f"training.processes: {count} on this machine take {count} GPUs, and {gpus} are visible")
        require_slots(count)


def runs_at_a_time(configs: Sequence[RunConfig]) -> int:
    """Return how many of a sweep's runs have GPUs of their own here at a time; 1 where they use none."""
    places = slot_limit() or len(visible_gpus()) if any(map(will_use_gpu, configs)) else 1
    return max(1, places // max(config.training.processes for config in configs))


def _spread(config: RunConfig, shape: ModelShape, available: int) -> Iterator[dict[str, int]]:
    """Yield the settings of `training` with which the weights are spread over more GPUs, and each phase fits; fewest first."""
    processes, shards = config.training.processes, weight_shards(config)
    wanted = [{"shards": count} for count in range(shards + 1, processes + 1) if processes % count == 0]
    more = [count for count in GPUS if count > processes]
    wanted += [{"processes": count} | ({} if config.training.shards is None else {"shards": count}) for count in more]
    for values in wanted:
        spread = changed(config, "training", **values)
        findings = (*process_limits(spread), *trl_limits(spread))
        needed = memory_need(spread, shape, padded=True).phases().values()
        if max(needed) <= available and not any(finding.is_error and finding.holds for finding in findings):
            yield values


def _largest(config: RunConfig, shape: ModelShape, phase: str, available: int, *, padded: bool) -> int | None:
    """Return the largest value of a phase's setting with which it fits; None = none."""
    field = SETTINGS[phase].removeprefix("training.")
    unit = config.rollout.group_size if phase == "rollout" else TOKENS_AT_A_TIME
    for value in range(getattr(config.training, field) // unit * unit, 0, -unit):
        if memory_need(changed(config, "training", **{field: value}), shape, padded=padded).phases()[phase] <= available:
            return value
    return None


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


def announce_memory(run_dir: RunDir, model: Path, report: Callable[[str], None]) -> None:
    """Report what each of several processes needs, and what a vLLM that the run starts takes beside its models.

    Args:
        run_dir: its folder.
        model: folder of its initial policy.
        report: takes each line.
    """
    config, num_parameters = batch_limits(run_dir).applied(run_dir.read_config()), count_parameters(model) or 0
    if config.training.processes > 1 and (shape := shape_of(model)) is not None:
        report(f"memory: {fit_of(config, shape)}")
    if config.rollout.engine != "vllm" or config.rollout.vllm.url is not None:
        return
    need, free = server_bytes(num_parameters, config.model.dtype, config.rollout.vllm.kv_cache_gib), available_memory()
    doubt = "" if need < free else "; that will not fit: lower rollout.vllm.kv_cache_gib, or use rollout.engine embedded"
    report(f"memory: vLLM takes up to {shown_bytes(need)} beside the training, {shown_bytes(free)} are available{doubt}")
