"""Checkpoints: everything that a run needs to go on exactly as if it had never stopped.

    checkpoints/step_000040/
      policy/                 transformers folder: weights (safetensors), config, tokenizer; loads anywhere
      reference.safetensors   the current reference
      initial.safetensors     the initial policy, once a sync has made it differ from the reference
      optimizer.pt            AdamW moments; read with `weights_only`, so that a checkpoint never runs code
      state.json              cursor, schedule, sync state
      manifest.json           SHA-256 of every file; written last, a folder without it is not a checkpoint

Sampling needs no generator state: its random numbers are functions of seed and step (`generation/randomness.py`).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from grpo_core.diskspace import whole_or_gone
from grpo_core.errors import ModelError
from grpo_core.policy.reference import Reference, frozen_copy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """The counters of a checkpoint."""

    step: int
    optimizer_step: int
    prompts: int
    tokens: int
    sync_count: int
    last_sync_step: int
    skipped_updates: int = 0
    """How many of the newest updates in a row were not applied."""
    best_step: int | None = None
    """The evaluated step with the highest held-out accuracy so far, the first of equals; its checkpoint is kept."""
    best_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """The live objects that a checkpoint is taken of, and restored into."""

    policy: PreTrainedModel
    tokenizer: "PreTrainedTokenizerBase"
    reference: Reference
    optimizer: AdamW
    schedule: LambdaLR


def save_checkpoint(folder: Path, live: Trainable, state: TrainingState, keep: int) -> Path:
    """Write `folder`/step_NNNNNN and drop all but the `keep` newest and the best; return the new one.

    It is written beside its final name, flushed to the disk and renamed, so that whoever reads it, also after a power
    failure, sees a whole checkpoint or none.

    Raises:
        DiskFullError: the disk is full; nothing of the new checkpoint is left, and every older one is.
    """
    target = folder / str(_name(state.step))
    scratch = folder / f".{target.name}.partial"
    remove_leftovers(folder)
    with whole_or_gone(f"checkpoint {target.name}", scratch):
        _write(scratch, live, state)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(scratch, target)
    _to_disk(folder)
    _drop_others(target, keep, _name(state.best_step))
    return target


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed has left half-written or half-removed."""
    for path in (*folder.glob(".step_*.partial"), *folder.glob("step_*")):
        if path.name.startswith(".") or not (path / MANIFEST_FILE).exists():
            shutil.rmtree(path)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints in `folder`, oldest first."""
    return sorted(path for path in folder.glob("step_*") if (path / MANIFEST_FILE).exists())


def _write(folder: Path, live: Trainable, state: TrainingState) -> None:
    """Write all files of a checkpoint, its manifest last, and flush them."""
    folder.mkdir(parents=True)
    live.policy.save_pretrained(folder / "policy")
    live.tokenizer.save_pretrained(folder / "policy")
    _save_weights(live.reference.model, folder / "reference.safetensors")
    if live.reference.initial is not None:
        _save_weights(live.reference.initial, folder / "initial.safetensors")
    with (folder / "optimizer.pt").open("wb") as stream:  # given a path, torch does not tell why it could not write
        torch.save({"optimizer": live.optimizer.state_dict(), "schedule": live.schedule.state_dict()}, stream)
    (folder / "state.json").write_text(json.dumps(asdict(state), indent=2) + "\n")
    digests = {str(file.relative_to(folder)): _sha256(file) for file in sorted(folder.rglob("*")) if file.is_file()}
    (folder / MANIFEST_FILE).write_text(json.dumps(digests, indent=2) + "\n")
    for path in (*folder.rglob("*"), folder):
        _to_disk(path)


def set_aside(checkpoint: Path) -> Path:
    """Give a damaged checkpoint a name under which nothing looks for one; return the new path."""
    aside = checkpoint.with_name(f"damaged_{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)


def find_best(folder: Path) -> Path | None:
    """Return the checkpoint with the best held-out accuracy; None where no step was evaluated, or it is not there."""
    checkpoints = list_checkpoints(folder)
    best = folder / str(_name(read_state(checkpoints[-1]).best_step)) if checkpoints else None
    return best if best in checkpoints else None


def load_checkpoint(checkpoint: Path, live: Trainable) -> TrainingState:
    """Restore `live` from a checkpoint and return its counters.

    Raises:
        ModelError: a file is missing or was changed since it was written.
    """
    verify_checkpoint(checkpoint)
    _load_weights(live.policy, load_file(checkpoint / "policy" / "model.safetensors"))
    live.reference.initial = frozen_copy(live.reference.model) if (checkpoint / "initial.safetensors").exists() else None
    if live.reference.initial is not None:
        _load_weights(live.reference.initial, load_file(checkpoint / "initial.safetensors"))
    _load_weights(live.reference.model, load_file(checkpoint / "reference.safetensors"))
    saved = torch.load(checkpoint / "optimizer.pt", weights_only=True, map_location=live.policy.device)
    live.optimizer.load_state_dict(saved["optimizer"])
    live.schedule.load_state_dict(saved["schedule"])
    state = read_state(checkpoint)
    live.reference.sync_count, live.reference.last_sync_step = state.sync_count, state.last_sync_step
    return state


def read_state(checkpoint: Path) -> TrainingState:
    """Return the counters of a checkpoint."""
    return TrainingState(**json.loads((checkpoint / "state.json").read_text()))


def verify_checkpoint(checkpoint: Path) -> None:
    """Compare every file with the manifest.

    Raises:
        ModelError: names the first file that is missing or differs.
    """
    try:
        digests: dict[str, str] = json.loads((checkpoint / MANIFEST_FILE).read_text())
    except ValueError as error:
        raise ModelError(f"{checkpoint}: {MANIFEST_FILE} cannot be read; the checkpoint is damaged") from error
    for name, sha256 in digests.items():
        file = checkpoint / name
        if not file.is_file():
            raise ModelError(f"{checkpoint}: {name} is missing; the checkpoint is damaged")
        if _sha256(file) != sha256:
            raise ModelError(f"{checkpoint}: the SHA-256 of {name} is not the manifest's; the checkpoint is damaged")


def _name(step: int | None) -> str | None:
    return None if step is None else f"step_{step:06d}"


def _drop_others(newest: Path, keep: int, best: str | None) -> None:
    """Leave the `keep` newest checkpoints and the best: none that the run went back behind.

    The manifest goes first, so that what a kill leaves does not pass for a whole one.
    """
    earlier = [path for path in list_checkpoints(newest.parent) if path.name <= newest.name]
    for path in list_checkpoints(newest.parent):
        if path not in earlier[-keep:] and path.name != best:
            (path / MANIFEST_FILE).unlink()
            shutil.rmtree(path)


def _save_weights(model: PreTrainedModel, path: Path) -> None:
    """Save each parameter once: tied weights are one tensor, and safetensors refuses to store it twice."""
    save_file({name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}, path)


@torch.no_grad()
def _load_weights(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


def _to_disk(path: Path) -> None:
    """Flush a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
