"""Plugin of a vLLM server: every process of the server calls `register` when it starts."""

from grpo_vllm.owner import end_with_owner

BACKEND = "grpo_file"
"""Of `--weight-transfer-config`."""


def register() -> None:
    """Make the weight transfer known to vLLM, and end this process when the one that owns the server ends."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # vLLM calls plugins more than once in a process
        WeightTransferEngineFactory.register_engine(BACKEND, "grpo_vllm.engine", "FileTransferEngine")
    end_with_owner()
