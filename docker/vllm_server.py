"""The vLLM server of docker-compose.yml: `python vllm_server.py serve`, and its health: `python vllm_server.py health`.

It is started as a run starts one of its own, from the same lines; what the run's configuration says there, variables say here.
Not called vllm.py: it lies where modules are found.
"""

import os
import sys
import urllib.request
from pathlib import Path

KEY = Path("/run/secrets/vllm_key")
PORT = 8000


def serve() -> None:
    """Become the server."""
    from grpo_core.generation.vllm.launch import ServerSettings, command, process_variables

    settings = ServerSettings(
        python=Path(sys.executable),
        model=Path(os.environ["GRPO_VLLM_MODEL"]),
        dtype=os.environ["GRPO_VLLM_DTYPE"],
        context=_count("GRPO_VLLM_CONTEXT"),
        threads=_count("GRPO_VLLM_THREADS"),
        kv_cache_gib=_count("GRPO_VLLM_KV_CACHE_GIB"),
        log_file=Path("/dev/stdout"),
    )
    variables = {
        **process_variables(),
        "GRPO_VLLM_KEY": KEY.read_text().strip(),
        "VLLM_SERVER_DEV_MODE": "1",
        "OMP_NUM_THREADS": str(settings.threads),
    }
    # The other containers' network, where the key is asked for.
    os.execve(sys.executable, command(settings, PORT, host="0.0.0.0"), {**os.environ, **variables})


def _count(variable: str) -> int:
    value = os.environ[variable]
    if not value.isdecimal() or int(value) < 1:
        sys.exit(f"error: {variable}={value}: is no number of at least 1")
    return int(value)


def health() -> None:
    """End with an error unless the server answers."""
    headers = {"Authorization": f"Bearer {KEY.read_text().strip()}"}
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{PORT}/health", headers=headers), timeout=5):
        pass


if __name__ == "__main__":
    {"serve": serve, "health": health}[sys.argv[1]]()
