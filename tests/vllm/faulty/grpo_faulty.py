"""An engine that makes one mistake on request, and says that all is well: what the proof of fresh weights must find.

The file named by GRPO_FAULT holds the mistake that the next transfers make; it is empty for none.
"""

import os
from pathlib import Path
from typing import Any

import torch


def register() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if "grpo_faulty" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("grpo_faulty", engine())


def engine() -> Any:
    from grpo_vllm import engine as honest

    class FaultyEngine(honest.FileTransferEngine):
        def receive_weights(self, update_info: Any) -> None:
            fault = Path(os.environ["GRPO_FAULT"]).read_text().strip()
            self._received = True
            if fault == "nothing":
                return
            if fault == "head not packed":
                repack, honest.repack_tied = honest.repack_tied, lambda model: None
                try:
                    super().receive_weights(update_info)
                finally:
                    honest.repack_tied = repack
                return
            read = honest.read_checked
            honest.read_checked = lambda path, manifest: changed(read(path, manifest), fault, self.__dict__)
            try:
                super().receive_weights(update_info)
            except RuntimeError:
                if fault != "half":
                    raise
                self._received = True
            finally:
                honest.read_checked = read

    return FaultyEngine


def changed(tensors: dict[str, torch.Tensor], fault: str, memory: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return what the mistake makes of the tensors of a transfer."""
    before = memory.get("before", tensors)
    memory["before"] = dict(tensors)
    names = sorted(tensors)
    if fault == "half":
        return {name: tensors[name] for name in names[: len(names) // 2]}
    if fault == "one stale":
        stale = next(name for name in names if name.endswith("layers.1.mlp.down_proj.weight"))
        return {**tensors, stale: before[stale]}
    if fault == "not a number":
        return {**tensors, names[0]: torch.full_like(tensors[names[0]], torch.nan)}
    return tensors
