"""Counts of operations, and of what makes a host wait for a device: what can be known of launches without a device."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "lift_fresh", "lift_fresh_copy")
VIEWS = {
    *("view", "_unsafe_view", "reshape", "transpose", "t", "permute", "expand", "unsqueeze", "squeeze", "slice", "select"),
    *("split", "split_with_sizes", "detach", "alias", "as_strided"),
}


class CountedOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.waits = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.operations[name] += name not in VIEWS
        by_mask = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.waits += name in WAITS or by_mask
        return function(*args, **(kwargs or {}))
