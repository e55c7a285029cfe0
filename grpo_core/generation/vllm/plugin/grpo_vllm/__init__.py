"""Plugin of a vLLM server: every process of the server calls `register` when it starts."""

import os

from grpo_vllm.owner import end_with_owner

BACKEND = "grpo_file"
"""Of `--weight-transfer-config`."""
WITHOUT_TILES = "GRPO_VLLM_WITHOUT_AMX"
"""Set on machines that announce AMX and do not have it: vLLM's attention in bfloat16 would end in SIGILL."""


def register() -> None:
    """Make the weight transfer known to vLLM, and end this process when the one that owns the server ends."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND in WeightTransferEngineFactory._registry:
        return  # vLLM calls plugins more than once in a process
    WeightTransferEngineFactory.register_engine(BACKEND, "grpo_vllm.engine", "FileTransferEngine")
    if os.environ.get(WITHOUT_TILES):
        import torch

        torch.cpu._is_amx_tile_supported = lambda: False
    end_with_owner()
