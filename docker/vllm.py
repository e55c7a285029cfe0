"""The vLLM server of docker-compose.yml: `python vllm.py serve`, and its health: `python vllm.py health`.

The options are those without which a run refuses the server (docs/vllm.md).
"""

import os
import sys
import urllib.request
from pathlib import Path

KEY = Path("/run/secrets/vllm_key")
ADDRESS = "http://127.0.0.1:8000"
OPTIONS = {
    "--served-model-name": "policy",
    "--host": "0.0.0.0",  # the other containers' network
    "--port": "8000",
    "--middleware": "grpo_vllm.guard.RequireKey",
    "--weight-transfer-config": '{"backend": "grpo_file"}',
    "--logprobs-mode": "processed_logprobs",
    "--generation-config": "vllm",
    "--hf-overrides": '{"head_dtype": "float32"}',
}


def serve() -> None:
    """Become the server."""
    words = [word for pair in OPTIONS.items() for word in pair]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", os.environ["GRPO_VLLM_MODEL"], *words]
    variables = {"GRPO_VLLM_KEY": KEY.read_text().strip(), "VLLM_SERVER_DEV_MODE": "1"}
    os.execve(sys.executable, [*command, "--no-enable-chunked-prefill"], {**os.environ, **variables})


def health() -> None:
    """End with an error unless the server answers."""
    request = urllib.request.Request(f"{ADDRESS}/health", headers={"Authorization": f"Bearer {KEY.read_text().strip()}"})
    with urllib.request.urlopen(request, timeout=5):
        pass


if __name__ == "__main__":
    {"serve": serve, "health": health}[sys.argv[1]]()
