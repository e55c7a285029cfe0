"""How much memory the phases of a step need, known before they run, whether a device has it, and with which settings it would.

    states   = 4 bytes x parameters x (policy, reference, initial policy once a sync made it another, two moments of AdamW)
               (`reference.offload` on a GPU: policy and moments; a pass under another policy has its weights beside them)
    rollout  = states + weights as they are multiplied + keys and values of `rollout_rows` completions + 3 logits of a token
    logps    = states + casts of weights + the logits of a micro-batch, twice, or one layer's activations and the cache
    update   = states + casts of weights + what all layers keep for the backward pass + 3 logits
               + gradients, where there are several micro-batches
               (gradient checkpointing: what one layer keeps and the inputs of all, beside the gradients)

States, logits and the cache are exact. What a layer keeps is `layer_bytes`, right within a quarter. With
`model.lora` the base is there once, and what is trained and copied is the adapter:

    states   = base, its adapted matrices in the compute type and the rest in fp32
               + 4 bytes x (adapter x (policy, initial policy, two moments of AdamW) + the reference once it has moved)

Measured on a CPU against the peaks of allocated tensors: tests/integration/test_memory_need.py. What the allocator keeps
beyond tensors is no part of it, nor is what the process had before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.derived import measures_full_kl, reference_moves, takes_full_kl
from grpo_core.machine.gpus import gpu_memory
from grpo_core.machine.hardware import CPUINFO, available_memory, has_bfloat16_kernels
from grpo_core.policy.outline import FULL_KL_COPIES, most_at_once
from grpo_core.run.sizes import MOMENTS, AdapterSize, ModelShape, adapter_size, shown_bytes

FLOAT, HALF = 4, 2
"""Bytes."""
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


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Bytes of tensors at most, in each phase of a step; every phase has the states, too."""

    states: int
    rollout: int
    logps: int
    update: int

    def phases(self) -> dict[str, int]:
        """Return them by phase."""
        return {"rollout": self.rollout, "logps": self.logps, "update": self.update}


def memory_need(config: RunConfig, shape: ModelShape, *, padded: bool) -> MemoryNeed:
    """Return what a run needs at most.

    Args:
        config: of the run.
        shape: of its model.
        padded: whether completions are padded in a pass (`why_padded`): on a GPU, and on a CPU where the model asks for it.
    """
    states, _ = states_of(config, shape)
    visiting = FLOAT * shape.parameters if config.reference.offload else 0
    return MemoryNeed(
        states=states,
        rollout=states + rollout_bytes(config, shape, packed=not padded),
        logps=states + visiting + logps_bytes(config, shape, padded=padded),
        update=states + (visiting if takes_full_kl(config) else 0) + update_bytes(config, shape, padded=padded),
    )


def acting_on(config: RunConfig, *, on_gpu: bool) -> RunConfig:
    """Return a configuration as it acts on a GPU or a CPU, where nothing is offloaded."""
    if on_gpu or not config.reference.offload:
        return config
    return _with(config, "reference", "offload", False)


def states_of(config: RunConfig, shape: ModelShape) -> tuple[int, str]:
    """Return (bytes, formula with its numbers) of what stays for the whole run."""
    moves, adapter = reference_moves(config), adapter_size(config, shape.linear_layers)
    if adapter is None:
        held = ["reference", "initial policy"][: 0 if config.reference.offload else 1 + moves]
        models = 1 + len(held) + MOMENTS
        weights = f"{shape.parameters:,} parameters x {models} ({', '.join(['policy', *held, 'two moments of AdamW'])})"
        return FLOAT * shape.parameters * models, f"{FLOAT} bytes x {weights}"
    base = FLOAT * shape.parameters - (FLOAT - compute_bytes(config)) * adapter.adapted
    copies, reference = 2 + MOMENTS, FLOAT * adapter.reference * moves
    first = "initial policy" if moves else "reference"
    formula = f"base {shown_bytes(base)} + {FLOAT} bytes x {adapter.weights:,} weights of the adapter x {copies} "
    formula += f"(policy, {first}, two moments of AdamW)" + (f" + reference {shown_bytes(reference)}" if moves else "")
    return base + FLOAT * adapter.weights * copies + reference, formula


def compute_bytes(config: RunConfig) -> int:
    """Return the bytes of a number in the compute type."""
    return HALF if config.model.dtype == "bfloat16" else FLOAT


def rollout_bytes(config: RunConfig, shape: ModelShape, *, packed: bool) -> int:
    """Return what sampling needs beside the states."""
    rollout, half, adapter = config.rollout, compute_bytes(config), adapter_size(config, shape.linear_layers)
    if rollout.engine != "embedded":
        return 0
    evaluation, probe = config.evaluation, config.probe
    wanted = max(
        rollout.num_prompts_per_step * rollout.group_size,
        (evaluation.num_prompts or config.training.rollout_rows) * max(1, evaluation.samples),
        0 if probe.every_steps is None else probe.num_prompts,
    )
    rows = min(max(config.training.rollout_rows, rollout.group_size), wanted)
    cache = rows * (rollout.max_prompt_tokens + rollout.max_completion_tokens) * shape.layers * 2 * shape.key_value * half
    adapted = 0 if adapter is None else adapter.adapted
    if packed:
        multiplied = half * shape.matrices + FLOAT * shape.vocabulary * shape.hidden
    else:
        multiplied = FLOAT * adapted if half == FLOAT else half * (shape.matrices - adapted)
    if half == HALF and adapter is not None:
        multiplied += 2 * half * adapter.weights  # with the zeros between B of matrices that are joined
    return multiplied + _casts(shape, half, adapter) + cache + 3 * FLOAT * rows * shape.vocabulary


def logps_bytes(config: RunConfig, shape: ModelShape, *, padded: bool) -> int:
    """Return what a pass without gradient needs beside the states: one layer of it at a time, then its logits.

    Of what a layer would keep for the backward pass, about half is there at a time. A padded pass hands keys and values of
    the prompts to each of their completions, in all layers.
    """
    rollout, (_, completion_tokens) = config.rollout, pass_tokens(config)
    logits = max(
        (1 + copies) * FLOAT * shape.vocabulary * most_at_once(completion_tokens, copies * shape.vocabulary)
        for copies in ((1, FULL_KL_COPIES) if measures_full_kl(config) else (1,))
    )
    seen = completion_tokens + completion_tokens * rollout.max_prompt_tokens // rollout.max_completion_tokens
    cache = FLOAT * seen * shape.layers * 2 * shape.key_value if padded else 0
    half, adapter = compute_bytes(config), adapter_size(config, shape.linear_layers)
    return _casts(shape, half, adapter) + max(logits, cache + layer_bytes(config, shape, padded=padded) // 2)


def update_bytes(config: RunConfig, shape: ModelShape, *, padded: bool) -> int:
    """Return what the update needs beside the states.

    At the most, the activations of a micro-batch are there and no gradient yet, or those of the micro-batches before it.
    """
    tokens, completion_tokens = pass_tokens(config)
    copies = FULL_KL_COPIES if takes_full_kl(config) else 1
    logits = (2 + copies) * FLOAT * shape.vocabulary * most_at_once(completion_tokens, copies * shape.vocabulary)
    half, adapter = compute_bytes(config), adapter_size(config, shape.linear_layers)
    gradients = FLOAT * (shape.parameters if adapter is None else adapter.weights)
    of_layer, casts = layer_bytes(config, shape, padded=padded), _casts(shape, half, adapter)
    if half == HALF and adapter is not None:  # a frozen matrix in fp32 is cast by each pass, of prompts and of completions
        casts += half * (1 + padded) * max(0, shape.matrices - adapter.adapted)
    if config.training.gradient_checkpointing:  # layer by layer: its activations and casts, while gradients come
        passes = logits + shape.layers * FLOAT * tokens * shape.hidden
        gradients, casts = gradients + of_layer, casts // shape.layers
    else:
        passes = logits + shape.layers * of_layer
    rows = config.rollout.num_prompts_per_step * config.rollout.group_size // config.loss.minibatches
    is_cut = completion_tokens < rows * config.rollout.max_completion_tokens
    return casts + (passes + gradients if is_cut else max(passes, gradients))


def pass_tokens(config: RunConfig) -> tuple[int, int]:
    """Return the tokens of the largest micro-batch of an update, and how many of them are of completions."""
    rollout = config.rollout
    group, prompt, completion = rollout.group_size, rollout.max_prompt_tokens, rollout.max_completion_tokens
    all_rows = rollout.num_prompts_per_step * group // config.loss.minibatches
    whole = -(-all_rows // group) * prompt + all_rows * completion
    tokens = min(max(config.training.microbatch_tokens, prompt + completion), whole)
    return tokens, min(tokens * group * completion // (prompt + group * completion), all_rows * completion)


def layer_bytes(config: RunConfig, shape: ModelShape, *, padded: bool) -> int:
    """Return what one layer keeps of the largest micro-batch for the backward pass.

    Norms keep their inputs in fp32, attention about four tensors (in fp32 where nothing is padded), products their inputs in
    the compute type (with an adapter: those of its factors alone), and the MLP its gate, activation, other half and product.
    """
    half, (tokens, completion_tokens) = compute_bytes(config), pass_tokens(config)
    adapter, attention = adapter_size(config, shape.linear_layers), 4 * (half if padded else FLOAT) * shape.attention
    if adapter is None:
        of_token = 24 * shape.hidden + attention + half * (shape.attention + 4 * shape.intermediate)
    else:
        of_token = 8 * shape.hidden + attention + half * (3 * shape.intermediate + adapter.inputs // shape.layers)
    repeated = completion_tokens * config.rollout.max_prompt_tokens // config.rollout.max_completion_tokens
    # Where it is padded: keys and values of each completion's prompt, for all heads.
    return tokens * of_token + repeated * 2 * half * shape.attention * padded


def _casts(shape: ModelShape, half: int, adapter: AdapterSize | None) -> int:
    """Return the bytes of weights as autocast keeps them for a phase: of those that are trained."""
    return half * (shape.matrices if adapter is None else adapter.weights) if half == HALF else 0


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a run needs beside what there is: `available` bytes for tensors, None where that is not known.

    `fitting` holds the phases that do not fit, each with the largest value of its setting (`SETTINGS`) that would, None = none
    would. `offloaded_states` are the bytes of the states with `reference.offload`, where that is not set and would act;
    `checkpointed_update` those of an update that does not fit, with `training.gradient_checkpointing`.
    """

    need: MemoryNeed
    available: int | None
    states_formula: str
    fitting: Mapping[str, int | None]
    offloaded_states: int | None = None
    checkpointed_update: int | None = None

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
    config = acting_on(config, on_gpu=on_gpu)
    total = device_memory if device_memory is not None else gpu_memory() if on_gpu else available_memory()
    available = total if total is None or not on_gpu else int(GPU_SHARE * total) - GPU_TAKEN
    need, (_, formula) = memory_need(config, shape, padded=on_gpu), states_of(config, shape)
    too_large = [] if available is None else [phase for phase, needed in need.phases().items() if needed > available]
    offload = not config.reference.offload and config.model.lora is None and config.training.engine != "trl" and on_gpu
    checkpointing = "update" in too_large and not config.training.gradient_checkpointing
    return Fit(
        need=need,
        available=available,
        states_formula=formula,
        fitting={phase: _largest(config, shape, phase, available or 0, padded=on_gpu) for phase in too_large},
        offloaded_states=states_of(_with(config, "reference", "offload", True), shape)[0] if offload else None,
        checkpointed_update=memory_need(_with(config, "training", "gradient_checkpointing", True), shape, padded=on_gpu).update
        if checkpointing
        else None,
    )


def will_use_gpu(config: RunConfig) -> bool:
    """Return whether a run would take a GPU of this machine."""
    device = config.training.device
    return device == "cuda" or (device == "auto" and not version("torch").endswith("+cpu") and gpu_memory() is not None)


def _largest(config: RunConfig, shape: ModelShape, phase: str, available: int, *, padded: bool) -> int | None:
    """Return the largest value of a phase's setting with which it fits; None = none."""
    field = SETTINGS[phase].removeprefix("training.")
    unit = config.rollout.group_size if phase == "rollout" else TOKENS_AT_A_TIME
    for value in range(getattr(config.training, field) // unit * unit, 0, -unit):
        if memory_need(_with(config, "training", field, value), shape, padded=padded).phases()[phase] <= available:
            return value
    return None


def _with(config: RunConfig, section: str, field: str, value: object) -> RunConfig:
    return config.model_copy(update={section: getattr(config, section).model_copy(update={field: value})})


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
