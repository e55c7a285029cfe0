"""Checkpoints: everything that a run needs to resume exactly as if it had never stopped.

    checkpoints/initial.safetensors   the initial policy, once for all of them
    checkpoints/step_000040/
      policy/                 transformers folder: weights (safetensors), config, tokenizer; loads anywhere
                              with model.lora: PEFT's folder of the adapter, which loads beside the base
      initial.json            digest of the initial policy
      reference.safetensors   the reference, once a sync has made it differ from the initial policy
      optimizer.pt            AdamW moments; read with `weights_only`, so that a checkpoint never runs code
      state.json              cursor, schedule, sync state
      journal.json            how long the journal was, and the SHA-256 of its bytes
      manifest.json           SHA-256 of every file; written last, a folder without it is not a checkpoint

Sampling needs no generator state: its random numbers are functions of seed and step (`generation/sampler.py`). How all of it is
stored is known here alone: a policy gives its weights by name, and takes them.

A checkpoint taken before the first sync needs the initial policy as its reference, a later one as what the drift is measured
from. The model that the run was started from is its second copy: a run resumes where either of the two has the digest.
"""

import copy
import json
import os
import shutil
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from grpo_core.errors import ModelError, name_of, raised_as
from grpo_core.machine.disk import build, durable_folder, flush, flush_all, read_json, sha256_of, whole_or_gone
from grpo_core.parallel import is_first
from grpo_core.parallel.sharded import as_rows, full
from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference
from grpo_core.policy.saved import (
    ASIDE,
    INITIAL_FILE,
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
from grpo_core.policy.weights import Weights, digest_of, save_weights

OPTIMIZER_FILE, REFERENCE_FILE, DIGEST_FILE = "optimizer.pt", "reference.safetensors", "initial.json"
POLICY_FOLDER = "policy"
DIGEST = "sha256"
"""Key in initial.json."""
NEEDED_FILES = (OPTIMIZER_FILE, STATE_FILE, DIGEST_FILE)
InUse = Callable[[], Container[Path]]
"""Returns the checkpoints with which other runs begin, as resolved paths."""


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """What a training changes: the live objects that a checkpoint is taken of, and restored into."""

    policy: Policy
    reference: Reference
    optimizer: Optimizer
    schedule: LambdaLR

    def contents(self) -> "Contents":
        """Return what is in them, in the same memory: it changes with them."""
        return Contents(
            policy=self.policy,
            weights=self.policy.weights(),
            reference=self.reference.current.weights() if self.reference.has_moved else None,
            optimizer=self.optimizer.state_dict(),
            schedule=self.schedule.state_dict(),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """What a checkpoint holds.

    The configuration, tokenizer and code of `policy` go into it, and `weights`; `reference` is None while it still is the
    initial policy.
    """

    policy: Policy
    weights: Weights
    reference: Weights | None
    optimizer: Mapping[str, Any]
    schedule: Mapping[str, Any]

    def copied(self) -> "Contents":
        """Return a copy in CPU memory of all that the next step may change; of several processes, the first has it."""
        return replace(
            self,
            weights=copied(self.weights),
            reference=copied(self.reference),
            optimizer=copied(self.optimizer),
            schedule=copied(self.schedule),
        )

    def copied_bytes(self) -> int:
        """Return the memory of such a copy."""
        moments = (value for slot in self.optimizer["state"].values() for value in slot.values())
        tensors = (*self.weights.values(), *(self.reference or {}).values(), *moments)
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


def copied(value: Any) -> Any:
    """Return a copy in CPU memory, in the first process; what is spread is gathered tensor by tensor, by all."""
    if isinstance(value, Tensor):
        whole = full(value.detach())
        return whole.to("cpu", copy=True) if is_first() else whole.new_empty(0)  # one tensor after the other is whole there
    if isinstance(value, Mapping):
        return {key: copied(entry) for key, entry in value.items()}
    return copy.deepcopy(value)


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
    target = folder / checkpoint_name(state.step)
    scratch = folder / f".{target.name}.partial"
    for leftover in list_leftovers(folder):
        shutil.rmtree(leftover)
    with whole_or_gone(f"checkpoint {target.name}", scratch):
        _write(scratch, contents, initial, state, mark)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(scratch, target)
    flush(folder)
    _drop_others(target, keep, state.best_step, in_use)
    return target


def _write(folder: Path, contents: Contents, initial: str, state: TrainingState, mark: JournalMark | None) -> None:
    folder.mkdir(parents=True)
    contents.policy.save(folder / POLICY_FOLDER, contents.weights)
    if contents.reference is not None:
        save_weights(contents.reference, folder / REFERENCE_FILE)
    with (folder / OPTIMIZER_FILE).open("wb") as file:  # torch's own errors do not tell a full disk
        torch.save({"optimizer": contents.optimizer, "schedule": contents.schedule}, file)
    facts = {DIGEST_FILE: {DIGEST: initial}, STATE_FILE: asdict(state), **({MARK_FILE: asdict(mark)} if mark else {})}
    for name, values in facts.items():
        (folder / name).write_text(json.dumps(values, indent=2) + "\n")
    (folder / MANIFEST_FILE).write_text(json.dumps(_digests(folder), indent=2, sort_keys=True) + "\n")
    flush_all(folder)


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a checkpoint, by name, but of its manifest."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: sha256_of(path) for name, path in files.items() if name != MANIFEST_FILE}


def _drop_others(newest: Path, keep: int, best_step: int | None, in_use: InUse) -> None:
    """Leave the `keep` newest checkpoints, the best and those in use: none that the run went back behind.

    The manifest goes first, so that what a kill leaves does not pass for a whole one.
    """
    checkpoints = list_checkpoints(newest.parent)
    earlier = [path for path in checkpoints if step_of(path) <= step_of(newest)]
    others = [path for path in checkpoints if path not in earlier[-keep:] and step_of(path) != best_step]
    used = in_use() if others else ()
    for path in others:
        if path not in earlier or path.resolve() not in used:
            (path / MANIFEST_FILE).unlink()
            shutil.rmtree(path)


def set_aside(checkpoint: Path) -> Path:
    """Give a damaged checkpoint a name under which nothing looks for one; return the new path."""
    aside = checkpoint.with_name(f"{ASIDE}{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)


def restore(checkpoint: Path, trainable: Trainable) -> TrainingState:
    """Restore `trainable`, in each of the processes, from a checkpoint that one of them has verified; return its counters.

    Raises:
        ModelError: it belongs to another model, or no copy of the initial policy is left. Then `trainable` is to be restored
            from another checkpoint, or given up.
    """
    state, policy, reference = read_state(checkpoint), trainable.policy, trainable.reference
    weights = policy.stored(checkpoint / POLICY_FOLDER)
    moved = load_file(checkpoint / REFERENCE_FILE) if state.sync_count else None
    if (fault := policy.misfit(weights)) is not None:
        raise ModelError(f"{checkpoint}: policy is of another model: {fault}; was model.source or model.lora changed?")
    initial = find_initial(checkpoint, read_json(checkpoint / DIGEST_FILE)[DIGEST], reference.initial.weights())
    # Not on the GPU: AdamW puts them there, and would have two of each for a moment.
    # One of several processes reads what it keeps of it: else each would have all in memory for a moment.
    saved = torch.load(checkpoint / OPTIMIZER_FILE, weights_only=True, map_location="cpu", mmap=policy.world.size > 1)
    trained = [parameter for group in trainable.optimizer.param_groups for parameter in group["params"]]
    for number, moments in saved["optimizer"]["state"].items():
        moments.update({name: as_rows(trained[number], moment) for name, moment in moments.items() if moment.ndim})
    # What a configuration says is the run's own, which may be another than that of the run with whose checkpoint it began.
    schedule, done = trainable.schedule, saved["schedule"]["last_epoch"]
    rates = [lr * factor(done) for lr, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    schedule.load_state_dict({**saved["schedule"], "base_lrs": schedule.base_lrs, "_last_lr": rates})
    groups = zip(trainable.optimizer.state_dict()["param_groups"], rates, strict=True)
    trainable.optimizer.load_state_dict(saved["optimizer"] | {"param_groups": [{**one, "lr": lr} for one, lr in groups]})
    policy.load(weights)
    reference.restore(
        initial,
        moved,
        sync_count=state.sync_count,
        last_sync_step=state.last_sync_step,
        error_bound=state.reference_error_bound,
    )
    return state


def verify_checkpoint(checkpoint: Path) -> frozenset[str]:
    """Compare every file with the manifest; return the names of the files that it vouches for.

    Raises:
        ModelError: names the first file that is missing or differs.
    """
    with raised_as(ModelError, f"{checkpoint}: cannot be read ({{cause}}); the checkpoint is damaged", OSError, ValueError):
        digests, found = build(dict[str, str], read_json(checkpoint / MANIFEST_FILE)), _digests(checkpoint)
    for name in (*NEEDED_FILES, *digests):
        if name not in found or found[name] != digests.get(name):
            fault = f"the SHA-256 of {name} is not the manifest's" if name in found else f"{name_of(name)} is missing"
            raise ModelError(f"{checkpoint}: {fault}; the checkpoint is damaged")
    return frozenset(digests)


def store_initial(folder: Path, weights: Weights) -> str:
    """Write the initial policy into `folder`, the checkpoints of a run, unless it is there; return its digest.

    Raises:
        DiskFullError: the disk is full; nothing of it is left.
    """
    target, partial, digest = folder / INITIAL_FILE, folder / f".{INITIAL_FILE}.partial", digest_of(weights)
    if _stored_initial(folder, digest) is not None:
        return digest
    durable_folder(folder)
    with whole_or_gone("the initial policy", partial):
        save_weights(weights, partial)
        partial.replace(target)
    flush(folder)
    return digest


def find_initial(checkpoint: Path, digest: str, loaded: Weights) -> Weights:
    """Return the initial policy of a checkpoint, which has a digest: as it is loaded already, else as it is stored beside it.

    Raises:
        ModelError: neither of the two has it.
    """
    weights = loaded if digest_of(loaded) == digest else _stored_initial(checkpoint.parent, digest)
    if weights is None:
        raise ModelError(
            f"{checkpoint.with_name(INITIAL_FILE)}: the initial policy that {checkpoint.name} needs is missing or damaged, and "
            "model.source (with an adapter, model.lora.init_from) no longer is that of the start; put one of the two back"
        )
    return weights


def _stored_initial(folder: Path, digest: str) -> Weights | None:
    try:
        weights: Weights = load_file(folder / INITIAL_FILE)
    except (OSError, ValueError, SafetensorError):
        return None
    return weights if digest_of(weights) == digest else None
