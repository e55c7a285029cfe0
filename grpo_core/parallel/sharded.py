"""A model whose weights are spread over processes: FSDP2 (`torch.distributed.fsdp.fully_shard`) and what it needs around it.

Each process keeps its rows of every weight, of the gradient and of the optimizer's moments. A layer's weights are gathered for
its pass alone; the rest (embedding, last norm, vocabulary head) for a whole pass, which therefore goes through `run`. While
completions are sampled, token by token, all weights stay gathered.

    process            0         1         2         3         training.processes 4, training.shards 2
    rows               first     second    first     second    gathered, and gradients added up, between 0 and 1, 2 and 3
    the same rows      0, 2      1, 3      0, 2      1, 3      their gradients are added up once before each optimizer step

Every function is a plain pass-through for a model that is not spread, so there is one way to train.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from grpo_core.parallel.world import World, local

Result = TypeVar("Result")
Model = TypeVar("Model", bound=nn.Module)


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Let modules that are made inside have parameters without memory; their buffers have their values."""
    register = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":  # one that is there already is tied
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def spread(model: Model, layers: list[nn.Module], world: World, *, in_bfloat16: bool) -> Model:
    """Spread a model that was made `without_weights`; return it with room for this process's rows.

    Args:
        model: changed in place.
        layers: whose weights are gathered one after the other.
        world: over whose shards.
        in_bfloat16: whether the layers' matrices are multiplied in bfloat16. Their norms stay fp32, and so does the rest: that
            is what autocast does, which would keep a copy of every weight until the backward pass.
    """
    assert world.mesh is not None
    mesh, compute = world.mesh["shards"], torch.bfloat16 if in_bfloat16 else None
    # Inputs are not cast: hidden states between layers are fp32, and so are rotary positions.
    policies = {kind: MixedPrecisionPolicy(kind, torch.float32, cast_forward_inputs=False) for kind in (None, compute)}
    for layer in layers:
        if in_bfloat16:
            fully_shard([module for module in layer.modules() if _is_norm(module)], mesh=mesh, mp_policy=policies[None])
        fully_shard(layer, mesh=mesh, mp_policy=policies[compute])
    # The rest is given back after a pass, too: nothing is kept between a forward and its backward pass but activations.
    fully_shard(model, mesh=mesh, mp_policy=policies[None], reshard_after_forward=True)
    for unit in _units(model):
        unit.set_gradient_divide_factor(1.0)  # denominators are those of the whole step
        unit.set_force_sum_reduction_for_comms(True)
    buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module.named_buffers(recurse=False)]
    model.to_empty(device=world.device)
    for module, name, buffer in buffers:
        module._buffers[name] = buffer.to(world.device)
    model.whole = lambda function: function()  # type: ignore[assignment]
    register_fsdp_forward_method(model, "whole")
    return model


def _is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 1


def _units(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def run(model: nn.Module, function: Callable[[], Result]) -> Result:
    """Return what a function computes with a model: one pass, whose tensors are the result, in a tuple if several."""
    result: Result = model.whole(function) if isinstance(model, FSDPModule) else function()  # type: ignore[operator]
    return result


def settle(model: nn.Module) -> None:
    """End a phase of passes: give back what is still gathered, else `parameters()` are other tensors; forget their order.

    Passes without a backward pass may have had another order in another process, which would then wait for ever.
    """
    if isinstance(model, FSDPModule):
        model.reset_iter_state()


@contextlib.contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Have all weights of a model as plain tensors while inside, in the type in which they are multiplied; none may change."""
    if not isinstance(model, FSDPModule):
        yield
        return
    run(model, lambda: None)  # what runs first is taken for the whole model
    settle(model)  # FSDP2 would keep what it has received for that
    for unit in _units(model):
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in _units(model):
            unit.set_reshard_after_forward(True, recurse=False)
        settle(model)


def full(tensor: Tensor) -> Tensor:
    """Return a whole tensor; all processes have to ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def rows_of(like: Tensor, whole: Any) -> Tensor:
    """Return the rows of a whole tensor, or of one in a file, that this process keeps of one with the same shape."""
    if not isinstance(like, DTensor) or isinstance(whole, DTensor):
        return local(whole)
    shape, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    rows: Tensor = whole[offset[0] : offset[0] + shape[0]]
    return rows


def as_rows(like: Tensor, whole: Tensor) -> Tensor:
    """Return a whole tensor as `like` is: spread as it is, or as it was given."""
    if not isinstance(like, DTensor):
        return whole
    rows = rows_of(like, whole).to(like.device, copy=True)
    return DTensor.from_local(rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())


def is_spread(model: nn.Module) -> bool:
    """Return whether the weights of a model are spread."""
    return isinstance(model, FSDPModule)
