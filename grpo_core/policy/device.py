"""Where tensors live, in which type and with how many threads they are multiplied, and whether the bits always are the same.

Offloaded weights wait in host memory and are on the accelerator for the passes that use them alone. A reference is needed for
its own passes and to measure its distance; moved there for them and dropped afterwards, it costs a copy of its weights over the
bus for each use (0.1 s for 0.5 billion weights in fp32 at 20 GB/s), and their memory during a pass instead of always.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from grpo_core.config import TrainingConfig
from grpo_core.errors import ConfigError, TrainingError
from grpo_core.machine.gpus import held_gpu
from grpo_core.machine.hardware import avoid_broken_kernels, core_count
from grpo_core.parallel import local_processes

Dtype = Literal["float32", "bfloat16"]
Place = tuple[dict[str, Any], str, Tensor]
"""Where a module keeps a tensor, by which name, and the tensor."""
NO_MEMORY = ("can't allocate memory", "not enough memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""In torch's messages where there is no more memory, beside those of `torch.OutOfMemoryError`."""
NO_SUCH_KERNEL = "does not have a deterministic implementation"
"""In torch's message."""


def pick_device(wanted: str) -> torch.device:
    """Return the device of `training.device`; `auto` is cuda where there is one.

    A run's device is decided here and nowhere else; afterwards its policy says which it is (`Policy.device`). What will be
    decided is known without torch to `run.fit.will_use_gpu`.

    Raises:
        ConfigError: cuda is wanted and there is none.
    """
    avoid_broken_kernels()
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("training.device: cuda, but torch finds no CUDA device here; set it to auto or cpu")
    return torch.device(wanted)


def compute_in(dtype: Dtype, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Run what is inside in `dtype`; weights stay fp32 and so does the vocabulary head, see `vocabulary_head`.

    Enter it once around a phase in which no weight changes: casts of weights are kept until it is left.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")


def attention_dtype(model: nn.Module, dtype: Dtype) -> torch.dtype:
    """Return what attention is computed in: the compute dtype, or that of the weights where it is fp32."""
    return torch.bfloat16 if dtype == "bfloat16" else next(model.parameters()).dtype


def pin_threads(config: TrainingConfig) -> int:
    """Fix the number of CPU threads, which decides the order of floating-point sums; return it.

    Processes of one training on this machine share its cores.
    """
    threads = config.threads or max(1, core_count() // local_processes())
    torch.set_num_threads(threads)
    return threads


def choose_kernels(*, deterministic: bool) -> None:
    """Let torch choose kernels that repeat bit for bit, or not; call it before anything is computed on a GPU.

    Outside of `strictly_deterministic`, an operation that has none runs with a warning, which the log holds.
    """
    # cuDNN's attention makes a plan for every shape, 23 to 37 ms each, and decoding has another shape at every token.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if deterministic:
        # cuBLAS reads it when it starts, and sums in another order from call to call without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=deterministic)
    # It would find reads of memory that nobody wrote, and costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property of the module
    torch.backends.cudnn.benchmark = False
    # Matrix products are fp32 unless asked otherwise; convolutions, which read the patches of an image, are TF32 unless told.
    torch.backends.cudnn.allow_tf32 = False


@contextlib.contextmanager
def strictly_deterministic() -> Iterator[None]:
    """Where kernels that repeat bit for bit are wanted, refuse all others while inside: around every pass of the trainer.

    A warning alone would not do: torch then keeps backward passes of flash and memory-efficient attention whose sums come in
    any order. Sampling stays outside: cumulative sums have no other kernel, and a token that was drawn is a fact.

    Raises:
        TrainingError: an operation of the model has no such kernel on this device.
    """
    wanted, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    except RuntimeError as error:
        if not (wanted and NO_SUCH_KERNEL in str(error)):
            raise
        operation = str(error).split(NO_SUCH_KERNEL)[0].strip()
        raise TrainingError(
            f"training.deterministic: {operation} has no kernel here that repeats bit for bit; set it to false: then the run "
            "does not repeat either"
        ) from error
    finally:
        torch.use_deterministic_algorithms(wanted, warn_only=warned)


def held_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Keep other trainings and evaluations of this user off a GPU while inside; a CPU is shared.

    Raises:
        DeviceError: another process holds it.
    """
    if device.type != "cuda":
        return contextlib.nullcontext()
    facts = torch.cuda.get_device_properties(device)
    return held_gpu(f"GPU-{facts.uuid}", facts.name)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is too little memory, on a GPU or beside one."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(text in str(error) for text in NO_MEMORY)


@contextlib.contextmanager
def on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Have copies of a model's tensors on a device while inside; afterwards it has its own again.

    Nothing is copied back: inside, no weight may change. Where all tensors are on the device, nothing happens.
    """
    own = [place for place in _places(model) if place[2].device != device]
    try:
        _replace(own, lambda data: data.to(device, non_blocking=True))
        yield
    finally:
        for held, name, tensor in own:
            held[name] = tensor


def to_host(model: nn.Module) -> None:
    """Move a model into host memory, page-locked where there is a GPU, which then reads it without a copy in between."""
    is_locked = torch.cuda.is_available()
    _replace(_places(model), lambda data: data.cpu().pin_memory() if is_locked else data.cpu())


def _replace(places: list[Place], moved: Callable[[Tensor], Tensor]) -> None:
    """Put what `moved` returns where each tensor is; tied weights, one tensor in several places, stay one."""
    copies: dict[int, Tensor] = {}
    for held, name, tensor in places:
        if id(tensor) not in copies:
            copy = moved(tensor.detach())
            is_parameter = isinstance(tensor, nn.Parameter)
            copies[id(tensor)] = nn.Parameter(copy, requires_grad=tensor.requires_grad) if is_parameter else copy
        held[name] = copies[id(tensor)]


def _places(model: nn.Module) -> list[Place]:
    kinds = (held for module in model.modules() for held in (module._parameters, module._buffers))
    return [(held, name, tensor) for held in kinds for name, tensor in held.items() if tensor is not None]
