"""What a vLLM server that can be a sampler is started with: command line, environment, memory.

It and what it imports need the standard library alone, so that a container that has vLLM and none of the trainer's packages is
started from the same lines (docker/vllm_server.py).
"""

import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path

from grpo_core.machine.hardware import needed_variables

GIB = 2**30
BYTES_PER_WEIGHT = {"float32": 4, "bfloat16": 2}
PROCESSES_GIB = 1.7
"""Of the server's three processes, whatever the model."""
COPIES = 3.4
"""Of the weights, while new ones are handed over: the server's, packed ones, and the file."""
HEAD_IN_FLOAT32 = {"head_dtype": "float32"}
"""vLLM's setting for logits in float32, as the trainer's are: a bfloat16 logit near 20 is off by up to 0.06."""
FOR_OTHERS = ("PYTHON", "GRPO_", "PREFECT_", "MLFLOW_", "GLIBC_TUNABLES")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a server is started with."""

    python: Path
    model: Path
    dtype: str
    context: int
    """Tokens of the longest prompt and completion together."""
    threads: int
    kv_cache_gib: int
    log_file: Path


def command(settings: ServerSettings, port: int, *, host: str = "127.0.0.1") -> list[str]:
    """Return the command line of a server that can be a sampler; loopback alone reaches it unless `host` says otherwise."""
    options = {
        "--model": settings.model,
        "--served-model-name": "policy",
        "--host": host,
        "--port": port,
        "--dtype": settings.dtype,
        "--max-model-len": settings.context,
        "--logprobs-mode": "processed_logprobs",  # with the temperature, as the trainer's
        "--generation-config": "vllm",  # no sampling settings from the model's folder
        # A prompt that is cut into chunks consumes random numbers of seeded requests otherwise, and ends the engine on a CPU.
        "--max-num-batched-tokens": max(8192, settings.context),
        "--kv-cache-memory-bytes": settings.kv_cache_gib * GIB,
        "--gpu-memory-utilization": 0.01,  # what remains of it is a check at the start, when the trainer has its part
        "--middleware": "grpo_vllm.guard.RequireKey",
        "--hf-overrides": json.dumps(HEAD_IN_FLOAT32),
        "--weight-transfer-config": '{"backend": "grpo_file"}',
    }
    # A prompt with images comes as text, with a template that leaves it as it is.
    flags = ("--enforce-eager", "--no-enable-chunked-prefill", "--trust-request-chat-template")
    program = (settings.python, "-m", "vllm.entrypoints.openai.api_server")
    return list(map(str, (*program, *itertools.chain(*options.items()), *flags)))


def environment(settings: ServerSettings, key: str) -> dict[str, str]:
    """Return the environment of a server: this process's, without what is meant for others, among it their passwords."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(FOR_OTHERS)},
        **process_variables(),
        "GRPO_VLLM_KEY": key,
        "VLLM_SERVER_DEV_MODE": "1",  # the routes of the weight transfer
        "OMP_NUM_THREADS": str(settings.threads),
        "HF_HUB_OFFLINE": "1",
    }


def process_variables() -> dict[str, str]:
    """Return the environment variables of every process with vLLM, here or in a server."""
    hardware = needed_variables()
    return {
        **hardware,
        **({"GRPO_VLLM_WITHOUT_AMX": "1"} if hardware else {}),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


def server_bytes(num_parameters: int, dtype: str, kv_cache_gib: int) -> int:
    """Return about how much memory a server takes at its largest on a machine without a GPU.

    Measured as proportional set size with vLLM 0.31.0: 5.2 GiB for SmolLM2-135M in float32 with a cache of 2 GiB, and 3.5 GiB
    for a model of next to nothing.

    >>> round(server_bytes(134_515_008, "float32", 2) / 2**30, 1)
    5.4
    """
    return round((PROCESSES_GIB + kv_cache_gib) * GIB + COPIES * BYTES_PER_WEIGHT[dtype] * num_parameters)
