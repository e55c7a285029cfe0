"""Weights from a file on the same machine, checked before the model is touched: all of them, each as its digest says.

The trainer writes one safetensors file and sends its path with a manifest of names, shapes and digests. What is checked here
is that the file holds exactly that; whether the server *uses* it is for the trainer to find out (its probe).
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.utils import get_layer_params_buffers


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Nothing has to be agreed on beforehand."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """One whole set of weights."""

    path: str
    """The safetensors file."""
    manifest: dict[str, dict[str, Any]] = field(default_factory=dict)
    """{name: {"shape": [...], "sha256": "..."}} of every tensor of the file."""


class FileTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads a file of weights into the model of one worker.

    The model is replaced within `update_weights`, during which the worker does nothing else: a request that comes between the
    start and the end of an update finds the old weights or the new ones.
    """

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Do nothing: a path is all that is sent."""

    def start_weight_update(self) -> None:
        """Expect one file."""
        self._received = False

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the file; unlike the base class, without waiting for an accelerator, which a CPU does not have."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Check the file, then load it.

        Raises:
            ValueError: the file is not what the manifest says; the model is as it was.
            RuntimeError: the model did not take all of it; it must not be used.
        """
        tensors = read_checked(Path(update_info.path), update_info.manifest)
        initialize_layerwise_reload(self.model)
        loaded = self.model.load_weights(iter(tensors.items()))
        incomplete = _incomplete_layers(self.model)
        finalize_layerwise_reload(self.model, self.model_config)
        repack_tied(self.model)
        missing = sorted({name for name, _ in self.model.named_parameters()} - set(loaded))
        if missing or incomplete:
            raise RuntimeError(f"weights that were not loaded: {[*missing, *incomplete]}")
        self._received = True

    def finish_weight_update(self) -> None:
        """Refuse to end an update in which nothing was loaded.

        Raises:
            RuntimeError: no file was received since the start.
        """
        if not self._received:
            raise RuntimeError("no weights were received since start_weight_update")

    def shutdown(self) -> None:
        """Do nothing: no file is kept open."""


def read_checked(path: Path, manifest: dict[str, dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name.

    Raises:
        ValueError: names the tensors that are too many, missing, or of another shape or content than the manifest says.
    """
    tensors = load_file(path)
    found = {name: {"shape": list(tensor.shape), "sha256": _digest(tensor)} for name, tensor in tensors.items()}
    wrong = sorted(name for name in found.keys() | manifest.keys() if found.get(name) != manifest.get(name))
    if wrong:
        raise ValueError(f"{path}: not as the manifest says: {', '.join(wrong[:10])}")
    return tensors


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().data).hexdigest()


def repack_tied(model: torch.nn.Module) -> None:
    """Pack the vocabulary head again.

    On a CPU vLLM packs weights for its matrix products. A head that is tied to the embedding is packed when the server starts
    and, as nothing is loaded into it by its own name, never again: its logits would stay those of the first weights.
    """
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)


def _incomplete_layers(model: torch.nn.Module) -> list[str]:
    """Return the layers of which a part was loaded: of a merged projection, for example, one of three.

    An embedding is padded to a round number of rows and never filled whole; it is one tensor, loaded or missing. Buffers, such
    as the numbers of positions in CLIP, are no weights and in no file.
    """
    modules = ((name, layer) for name, layer in model.named_modules() if not isinstance(layer, VocabParallelEmbedding))
    infos = ((name, get_layerwise_info(layer), get_layer_params_buffers(layer)[1]) for name, layer in modules)
    return [
        name
        for name, info, buffers in infos
        if info.can_load() and 0 < info.load_numel < (info.load_numel_total or 0) - sum(one.numel() for one in buffers.values())
    ]
