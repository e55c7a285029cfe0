"""The memory of a vLLM server that a run starts on a machine without a GPU, known before it is started."""

GIB = 2**30
BYTES_PER_WEIGHT = {"float32": 4, "bfloat16": 2}
PROCESSES_GIB = 1.7
"""Of the server's three processes, whatever the model."""
COPIES = 3.4
"""Of the weights, while new ones are handed over: the server's, packed ones, and the file."""


def server_bytes(num_parameters: int, dtype: str, kv_cache_gib: int) -> int:
    """Return about how much memory a server takes at its largest.

    Measured as proportional set size with vLLM 0.31.0: 5.2 GiB for SmolLM2-135M in float32 with a cache of 2 GiB, and 3.5 GiB
    for a model of next to nothing.

    >>> round(server_bytes(134_515_008, "float32", 2) / 2**30, 1)
    5.4
    """
    return round((PROCESSES_GIB + kv_cache_gib) * GIB + COPIES * BYTES_PER_WEIGHT[dtype] * num_parameters)
