"""Offloading: weights that wait in host memory and are on the accelerator for the passes that use them alone.

A reference is needed for its own passes and to measure its distance. Moved there for them and dropped afterwards, it costs a
copy of its weights over the bus for each use (0.1 s for 0.5 billion weights in fp32 at 20 GB/s), and their memory during a pass
instead of always. The host's memory is page-locked: a GPU reads it without a copy in between.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Place = tuple[dict[str, Any], str, Tensor]
"""Where a module keeps a tensor, by which name, and the tensor."""


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
    """Move a model into host memory, page-locked where there is a GPU that reads it."""
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
    kinds = [(module._parameters, module._buffers) for module in model.modules()]
    return [(held, name, tensor) for pair in kinds for held in pair for name, tensor in held.items() if tensor is not None]
