"""Models whose weights are pickles (`pytorch_model.bin`), as safetensors: converted once, and kept in the cache folder."""

import logging
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.errors import ModelError, few_names, raised_as
from grpo_core.policy.sources.cache import is_whole, made_once, model_folder
from grpo_core.policy.sources.weight_files import ENTRIES, INDEX, PICKLED, files_identity, weight_files

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


def as_safetensors(source: str, folder: Path) -> Path:
    """Return a model folder whose weights are safetensors: `folder` itself, or a copy of it that is made on first use.

    Raises:
        ModelError: there are no weights, a pickle holds more than tensors, or the cache folder cannot be used.
        BusyError: another process has been converting it for too long.
    """
    if (copy := _copy_of(folder)) is None:
        return folder

    def convert(target: Path) -> None:
        from grpo_core.policy.weights import save_weights

        logger.info("converting the weights of %s to safetensors, once", source)
        save_weights(unpickled(folder), target / ENTRIES[0])
        for file in folder.iterdir():
            if file.is_file() and not file.name.endswith((PICKLED, PICKLED + INDEX)):
                shutil.copyfile(file, target / file.name)

    return made_once(source, copy, convert)


def safetensors_here(folder: Path) -> Path | None:
    """Return what `as_safetensors` would without converting anything; None where it has to."""
    try:
        copy = _copy_of(folder)
    except ModelError:  # of a folder without weights, which is refused elsewhere
        return folder
    return folder if copy is None else copy if is_whole(copy) else None


def unpickled(folder: Path, device: str = "cpu") -> "dict[str, torch.Tensor]":
    """Return the weights of a model folder that are pickles; on the device `meta`, names and shapes alone.

    Raises:
        ModelError: a file cannot be read without running its code, or holds something else than tensors.
    """
    import torch

    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        with raised_as(ModelError, f"{file}: cannot be read as a pickle of weights ({{cause}}); download it again", Exception):
            weights.update(torch.load(file, map_location=device, weights_only=True, mmap=zipfile.is_zipfile(file)))
    if others := [name for name, value in weights.items() if not isinstance(value, torch.Tensor)]:
        raise ModelError(f"{folder}: its pickle holds {few_names(others, 3)}, which is no weight; save the model's state_dict")
    return weights


def _copy_of(folder: Path) -> Path | None:
    """Return the place of the converted copy of a model; None where its weights are no pickles."""
    if not all(file.suffix == PICKLED for file in weight_files(folder)):
        return None
    return model_folder(f"converted-{files_identity([file for file in folder.iterdir() if file.is_file()])[:16]}")
