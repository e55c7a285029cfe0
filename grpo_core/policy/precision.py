"""Compute types: fp32 weights, matrix products in the configured type."""

from contextlib import AbstractContextManager
from typing import Literal

import torch

Dtype = Literal["float32", "bfloat16"]


def compute_in(dtype: Dtype, device: torch.device) -> AbstractContextManager[None]:
    """Run what is inside in `dtype`; weights stay fp32 and so does the vocabulary head, see `vocabulary_head`.

    Enter it once around a phase in which no weight changes: casts of weights are kept until it is left.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")
