"""What a decoded token needs in a layer beside products and attention: by torch's operations, or compiled to a kernel each.

On an accelerator every operation is a launch, and with few rows a launch is all that it costs. torch.compile makes one kernel
of what is between two products: residual and norm, rotation and cast, activation. Shapes are dynamic, so a kernel is compiled
twice, for one row and for more (10 to 30 s for all, when a model is loaded). A CPU needs a C++ compiler, a GPU Triton.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from grpo_core.machine.disk import private_folder
from grpo_core.policy.sources.cache import cache_folder

KERNELS_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def normed(x: Float[Tensor, "B H"], weight: Float[Tensor, " H"], eps: float, dtype: torch.dtype) -> Float[Tensor, "B H"]:
    """Return RMSNorm over the last dimension, cast to `dtype`."""
    return functional.rms_norm(x, weight.shape, weight, eps).to(dtype)


def added_and_normed(
    x: Float[Tensor, "B H"], out: Float[Tensor, "B H"], weight: Float[Tensor, " H"], eps: float, dtype: torch.dtype
) -> Float[Tensor, "B H"]:
    """Add `out` to `x`, in place; return its norm, as `normed` does."""
    x.add_(out)
    return functional.rms_norm(x, weight.shape, weight, eps).to(dtype)


def rotated(
    states: Float[Tensor, "B n d"], cosine: Float[Tensor, "B 1 d"], sine: Float[Tensor, "B 1 d"], dtype: torch.dtype
) -> Float[Tensor, "B n d"]:
    """Apply rotary positions and cast to `dtype`; the sign of the second half's rotation is in the sine."""
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, dims=-1), sine).to(dtype)


def activated(gate: Float[Tensor, "B I"], up: Float[Tensor, "B I"]) -> Float[Tensor, "B I"]:
    """Return silu(gate) x up."""
    return functional.silu(gate).mul_(up)


@dataclass(frozen=True, kw_only=True)
class Fused:
    """The four functions above."""

    normed: Callable[..., Tensor] = normed
    added_and_normed: Callable[..., Tensor] = added_and_normed
    rotated: Callable[..., Tensor] = rotated
    activated: Callable[..., Tensor] = activated


EAGER = Fused()


@functools.cache
def compiled() -> Fused:
    """Return them compiled; each is compiled when it is first used.

    Results differ from those of torch's operations in the last digits: what is fused is rounded once.

    Raises:
        OSError: the folder in which they are kept cannot be used. torch's own is in a place where others can make it first, and
            what lies there is executed.
    """
    if KERNELS_VARIABLE not in os.environ:
        os.environ[KERNELS_VARIABLE] = str(private_folder(cache_folder() / "kernels"))
    make = functools.partial(torch.compile, dynamic=True, fullgraph=True)
    return Fused(normed=make(normed), added_and_normed=make(added_and_normed), rotated=make(rotated), activated=make(activated))
