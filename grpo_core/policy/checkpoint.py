"""Checkpoints: everything that a run needs to resume exactly as if it had never stopped.

    checkpoints/initial.safetensors   the initial policy, once for all of them (`initial.py`)
    checkpoints/step_000040/
      policy/                 transformers folder: weights (safetensors), config, tokenizer; loads anywhere
                              with model.lora: PEFT's folder of the adapter, which loads beside the base
      initial.json            digest of the initial policy
      reference.safetensors   the reference, once a sync has made it differ from the initial policy
      optimizer.pt            AdamW moments; read with `weights_only`, so that a checkpoint never runs code
      state.json              cursor, schedule, sync state
      journal.json            how long the journal was, and the SHA-256 of its bytes
      manifest.json           SHA-256 of every file; written last, a folder without it is not a checkpoint

Sampling needs no generator state: its random numbers are functions of seed and step (`generation/sampler.py`).
"""

import json
import os
import shutil
from collections.abc import Callable, Container
from dataclasses import asdict
from functools import partial
from pathlib import Path, PurePosixPath

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from grpo_core.errors import ModelError, cause, name_of, raised_as, shown
from grpo_core.machine.disk import flush, flush_all, sha256_of, whole_or_gone
from grpo_core.machine.jsonfile import build, read_json
from grpo_core.policy.initial import find_initial
from grpo_core.policy.lora.facts import ADAPTER_WEIGHTS
from grpo_core.policy.saved import (
    MANIFEST_FILE,
    MARK_FILE,
    STATE_FILE,
    JournalMark,
    TrainingState,
    checkpoint_name,
    list_checkpoints,
    list_leftovers,
    read_state,
    step_of,
)
from grpo_core.policy.trainable import Contents, Trainable
from grpo_core.policy.weights_file import WEIGHTS_FILE, Shapes, save_weights

OPTIMIZER_FILE = "optimizer.pt"
POLICY_FOLDER = "policy"
POLICY_FILES = frozenset({f"{POLICY_FOLDER}/{WEIGHTS_FILE}", f"{POLICY_FOLDER}/{ADAPTER_WEIGHTS}"})
"""A checkpoint has one of the two."""
REFERENCE_FILE, DIGEST_FILE = "reference.safetensors", "initial.json"
DIGEST = "sha256"
"""Key in the last of them."""
NEEDED_FILES = (POLICY_FILES, {OPTIMIZER_FILE}, {STATE_FILE}, {DIGEST_FILE})
"""One of each."""
InUse = Callable[[], Container[Path]]
"""Returns the checkpoints with which other runs begin, as resolved paths."""


def save_checkpoint(
    folder: Path,
    contents: Contents,
    initial: str,
    state: TrainingState,
    *,
    keep: int,
    mark: JournalMark | None = None,
    in_use: InUse = dict,
) -> Path:
    """Write `folder`/step_NNNNNN and drop all but the `keep` newest, the best and those in use; return the new one.

    It is written beside its final name, flushed to the disk and renamed, so that whoever reads it, also after a power
    failure, sees a whole checkpoint or none. `initial` is the digest that `store_initial` gave: the checkpoint needs it.

    Raises:
        DiskFullError: the disk is full; nothing of the new checkpoint is left, and every older one is.
    """
    target = folder / str(checkpoint_name(state.step))
    scratch = folder / f".{target.name}.partial"
    for leftover in list_leftovers(folder):
        shutil.rmtree(leftover)
    with whole_or_gone(f"checkpoint {target.name}", scratch):
        _write(scratch, contents, initial, state, mark)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(scratch, target)
    flush(folder)
    _drop_others(target, keep, checkpoint_name(state.best_step), in_use)
    return target


def _write(folder: Path, contents: Contents, initial: str, state: TrainingState, mark: JournalMark | None) -> None:
    """Write all files of a checkpoint, its manifest last, and flush them."""
    folder.mkdir(parents=True)
    name, digest = contents.policy.save(folder / POLICY_FOLDER, contents.weights)
    digests = {f"{POLICY_FOLDER}/{name}": digest}
    if contents.reference is not None:
        digests[REFERENCE_FILE] = save_weights(contents.reference, folder / REFERENCE_FILE)
    digests[OPTIMIZER_FILE] = save_optimizer(contents, folder / OPTIMIZER_FILE)
    (folder / DIGEST_FILE).write_text(json.dumps({DIGEST: initial}) + "\n")
    (folder / STATE_FILE).write_text(json.dumps(asdict(state), indent=2) + "\n")
    if mark is not None:
        (folder / MARK_FILE).write_text(json.dumps(asdict(mark), indent=2) + "\n")
    small = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    digests |= {name: sha256_of(path) for name, path in small.items() if name not in digests}
    (folder / MANIFEST_FILE).write_text(json.dumps(digests, indent=2, sort_keys=True) + "\n")
    flush_all(folder)


def save_optimizer(contents: Contents, path: Path) -> str:
    """Write AdamW's moments and the schedule; return the file's SHA-256."""
    with path.open("wb") as file:  # torch's own errors do not tell a full disk
        torch.save({"optimizer": contents.optimizer, "schedule": contents.schedule}, file)
    return sha256_of(path)


def set_aside(checkpoint: Path) -> Path:
    """Give a damaged checkpoint a name under which nothing looks for one; return the new path."""
    aside = checkpoint.with_name(f"damaged_{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)


def load_checkpoint(checkpoint: Path, trainable: Trainable) -> TrainingState:
    """Restore `trainable` from a checkpoint and return its counters.

    Raises:
        ModelError: a file is missing, was changed since it was written, or belongs to another model. Then `trainable` is to be
            restored from another checkpoint, or given up.
    """
    files = verify_checkpoint(checkpoint)
    state, reference = read_state(checkpoint), trainable.reference
    if REFERENCE_FILE in files:
        _check_weights(checkpoint, REFERENCE_FILE, reference.initial.misfit)
    _check_weights(checkpoint, min(files & POLICY_FILES), partial(trainable.policy.misfit, in_folder=True))
    initial = find_initial(checkpoint, _initial_digest(checkpoint), reference.initial.weights())
    _load_optimizer(checkpoint, trainable)
    trainable.policy.load(trainable.policy.stored(checkpoint / POLICY_FOLDER))
    reference.restore(
        initial,
        load_file(checkpoint / REFERENCE_FILE) if REFERENCE_FILE in files else None,
        sync_count=state.sync_count,
        last_sync_step=state.last_sync_step,
        error_bound=state.reference_error_bound,
    )
    return state


def _initial_digest(checkpoint: Path) -> str:
    unreadable = f"{checkpoint}: {DIGEST_FILE} cannot be read ({{cause}})"
    with raised_as(ModelError, unreadable, OSError, ValueError, LookupError, TypeError):
        return build(dict[str, str], read_json(checkpoint / DIGEST_FILE))[DIGEST]


def verify_checkpoint(checkpoint: Path) -> frozenset[str]:
    """Compare every file with the manifest; return the names of the files that it vouches for.

    Raises:
        ModelError: names the first file that is missing or differs, that the manifest leaves out, or that lies elsewhere.
    """
    unreadable = f"{checkpoint}: {MANIFEST_FILE} cannot be read ({{cause}}); the checkpoint is damaged"
    with raised_as(ModelError, unreadable, OSError, ValueError):
        digests = build(dict[str, str], read_json(checkpoint / MANIFEST_FILE))
    fault = next((fault for name, sha256 in digests.items() if (fault := _fault(checkpoint, name, sha256))), None)
    left_out = [" or ".join(sorted(names)) for names in NEEDED_FILES if names.isdisjoint(digests)]
    if fault is None and not left_out and read_state(checkpoint).sync_count and REFERENCE_FILE not in digests:
        left_out = [REFERENCE_FILE]
    if fault is None and left_out:
        fault = f"{left_out[0]} is not in {MANIFEST_FILE}"
    if fault is not None:
        raise ModelError(f"{checkpoint}: {fault}; the checkpoint is damaged")
    return frozenset(digests)


def _fault(checkpoint: Path, name: str, sha256: str) -> str | None:
    """Return what is wrong with a file that the manifest names."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts:
        return f"{MANIFEST_FILE} names {shown(name)}, which lies outside of it"
    try:
        found = sha256_of(checkpoint / name)
    except FileNotFoundError:
        return f"{name_of(name)} is missing"
    except (OSError, ValueError) as error:  # a name that no file can have; a folder
        return f"{name_of(name)} cannot be read ({cause(error, 80)})"
    return None if found == sha256 else f"the SHA-256 of {name} is not the manifest's"


def _drop_others(newest: Path, keep: int, best: str | None, in_use: InUse) -> None:
    """Leave the `keep` newest checkpoints, the best and those in use: none that the run went back behind.

    The manifest goes first, so that what a kill leaves does not pass for a whole one.
    """
    earlier = [path for path in list_checkpoints(newest.parent) if step_of(path) <= step_of(newest)]
    others = [path for path in list_checkpoints(newest.parent) if path not in earlier[-keep:] and path.name != best]
    used = in_use() if others else ()
    for path in others:
        if path not in earlier or path.resolve() not in used:
            (path / MANIFEST_FILE).unlink()
            shutil.rmtree(path)


def _check_weights(checkpoint: Path, name: str, misfit: Callable[[Shapes], str | None]) -> None:
    """Ask whether weights of the names and shapes in a file fit, without reading them."""
    unreadable = f"{checkpoint}: {name} cannot be read ({{cause}}); the checkpoint is damaged"
    with (
        raised_as(ModelError, unreadable, OSError, ValueError, SafetensorError),
        safe_open(checkpoint / name, framework="pt") as file,
    ):
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118  (it is no dict)
    fault = misfit(shapes)
    if fault is not None:
        raise ModelError(f"{checkpoint}: {name} is of another model: {fault}; was model.source or model.lora changed?")


def _load_optimizer(checkpoint: Path, trainable: Trainable) -> None:
    try:
        # Not on the GPU: AdamW puts them there, and would have two of each for a moment.
        saved = torch.load(checkpoint / OPTIMIZER_FILE, weights_only=True, map_location="cpu")
        trainable.optimizer.load_state_dict(saved["optimizer"])
        trainable.schedule.load_state_dict(saved["schedule"])
    except Exception as error:  # torch raises many types for a file that is none of its own, or of another optimizer
        raise ModelError(
            f"{checkpoint}: {OPTIMIZER_FILE} cannot be used ({type(error).__name__}: {cause(error)}); the checkpoint is damaged"
        ) from error
