"""Which checkpoints there are, and where each was taken: known without loading torch, which takes a flow seconds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic.dataclasses import dataclass

from grpo_core.errors import ModelError, cause, raised_as
from grpo_core.machine.disk import STORED, Count, Norm, build, read_json, sha256_of

ASIDE = "damaged_"
"""Before the name of a checkpoint that is not to be used: nothing looks for one under such a name."""
MANIFEST_FILE, STATE_FILE, MARK_FILE = "manifest.json", "state.json", "journal.json"
INITIAL_FILE = "initial.safetensors"
"""Beside the checkpoints: the initial policy, which all of them share."""
Kind = TypeVar("Kind")
_NAME = re.compile(r"step_(\d{6,})")
_LEFTOVER = re.compile(r"\.step_\d{6,}\.partial")


@dataclass(frozen=True, kw_only=True, config=STORED)
class TrainingState:
    """The counters of a checkpoint."""

    step: Count
    optimizer_step: Count
    prompts: Count
    tokens: Count
    """Completion tokens trained on."""
    sync_count: Count
    last_sync_step: Count
    generated_tokens: Count = 0
    """Completion tokens sampled, those left out of the loss included."""
    reference_error_bound: Norm = 0.0
    """How far an averaged adapter, as the reference, can be from its formula (`Reference.error_bound`)."""
    reference_lag: Norm = 0.0
    """Age of the reference in steps: that of the policies in it, weighted as they are in it."""
    skipped_updates: Count = 0
    """How many of the newest updates in a row were not applied."""
    best_step: Count | None = None
    """The evaluated step with the highest held-out accuracy so far, the first of equals; its checkpoint is kept."""
    best_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True, config=STORED)
class JournalMark:
    """Where the journal of a run was when a checkpoint was taken: by it the checkpoint knows its journal."""

    bytes: Count
    sha256: str
    """Of these bytes."""


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints in `folder`, oldest first."""
    return sorted((path for path in _named(folder, _NAME) if (path / MANIFEST_FILE).exists()), key=step_of)


def stored_initial(folder: Path) -> Path | None:
    """Return the file with the initial policy in `folder`; None without a whole checkpoint, which alone tells its digest."""
    file = folder / INITIAL_FILE
    return file if file.is_file() and list_checkpoints(folder) else None


def list_leftovers(folder: Path) -> list[Path]:
    """Return what a process that was killed has left half-written or half-removed in `folder`."""
    half_removed = (path for path in _named(folder, _NAME) if not (path / MANIFEST_FILE).exists())
    return sorted((*_named(folder, _LEFTOVER), *half_removed))


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was taken, from its name.

    >>> step_of(Path("checkpoints/step_000040"))
    40
    """
    return int(checkpoint.name.removeprefix("step_"))


def _named(folder: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """Yield the folders with a name that only we give; a copy (`step_000040_backup`) and a link are somebody else's."""
    for path in folder.glob("*step_*"):
        if pattern.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            yield path


def find_best(folder: Path) -> Path | None:
    """Return the checkpoint with the best held-out accuracy; None where no step was evaluated, or it is not there."""
    checkpoints = list_checkpoints(folder)
    best_step = read_state(checkpoints[-1]).best_step if checkpoints else None
    return next((path for path in checkpoints if step_of(path) == best_step), None)


def read_state(checkpoint: Path) -> TrainingState:
    """Return the counters of a checkpoint.

    Raises:
        ModelError: state.json is missing or holds something else.
    """
    return _read(TrainingState, checkpoint / STATE_FILE)


def read_mark(checkpoint: Path) -> JournalMark | None:
    """Return where the journal was when a checkpoint was taken; None where it holds none.

    Raises:
        ModelError: journal.json is not what was written: its damage is the checkpoint's, and says nothing of the journal.
    """
    file = checkpoint / MARK_FILE
    if not file.exists():
        return None
    with raised_as(ModelError, f"{checkpoint}: {{cause}}; the checkpoint is damaged", OSError, ValueError):
        digests = build(dict[str, str], read_json(checkpoint / MANIFEST_FILE))
        if digests.get(MARK_FILE) != sha256_of(file):
            raise ValueError(f"the SHA-256 of {MARK_FILE} is not the manifest's")
    return _read(JournalMark, file)


def _read(kind: type[Kind], file: Path) -> Kind:
    try:
        return build(kind, read_json(file))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file.parent}: {file.name} cannot be read ({cause(error)}); the checkpoint is damaged") from error


def checkpoint_name(step: int) -> str:
    """Return the folder name of the checkpoint after a step."""
    return f"step_{step:06d}"
