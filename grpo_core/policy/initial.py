"""The initial policy of a run, stored once for all its checkpoints, each of which holds its digest.

    checkpoints/initial.safetensors     the weights

A checkpoint taken before the first sync needs them as its reference, a later one as what the drift is measured from. The model
that the run was started from is their second copy: a run resumes where either of the two has the digest.
"""

import hashlib
import logging
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from grpo_core.errors import InitialPolicyError
from grpo_core.machine.disk import durable_folder, flush, whole_or_gone
from grpo_core.policy.saved import INITIAL_FILE
from grpo_core.policy.weights_file import Weights, content_of, save_weights

PARTIAL_FILE = ".initial.safetensors.partial"

log = logging.getLogger(__name__)


def store_initial(folder: Path, weights: Weights) -> str:
    """Write the weights into `folder`, the checkpoints of a run, unless they are there; return their digest.

    Raises:
        DiskFullError: the disk is full; nothing of them is left.
    """
    target, partial, digest = folder / INITIAL_FILE, folder / PARTIAL_FILE, digest_of(weights)
    if _stored(folder, digest) is not None:
        return digest
    if target.exists():
        log.warning("%s is damaged, or of another start of this run; it is written again", target)
    durable_folder(folder)
    with whole_or_gone("the initial policy", partial):
        save_weights(weights, partial)
        partial.replace(target)
    flush(folder)
    return digest


def find_initial(checkpoint: Path, digest: str, loaded: Weights) -> Weights:
    """Return the initial policy of a checkpoint, which has a digest: as it is loaded already, else as it is stored beside it.

    Raises:
        InitialPolicyError: neither of the two has it. It is no fault of the checkpoint that names the digest.
    """
    if digest_of(loaded) == digest:
        return loaded
    folder = checkpoint.parent
    stored = _stored(folder, digest)
    if stored is None:
        raise InitialPolicyError(
            f"{folder / INITIAL_FILE}: the initial policy that {checkpoint.name} needs is missing or damaged, and model.source "
            "(with an adapter, model.lora.init_from) no longer is that of the start; put one of the two back"
        )
    return stored


def digest_of(weights: Weights) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of weights, in hexadecimal digits."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(content_of(tensor))
    return digest.hexdigest()


def _stored(folder: Path, digest: str) -> Weights | None:
    """Return the weights that are stored, if they have a digest."""
    try:
        weights: Weights = load_file(folder / INITIAL_FILE)
    except (OSError, ValueError, SafetensorError):
        return None
    return weights if digest_of(weights) == digest else None
