"""Models that are made here and kept: made once, whole or not at all.

A model is made by one process, under a lock, in a folder beside its place, and renamed; others wait and use it. A finished
model is read without the lock, also from a folder that cannot be written.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from grpo_core.errors import BusyError, ModelError, cause
from grpo_core.machine.disk import flush

CACHE_VARIABLE = "GRPO_CACHE"
PATIENCE_SECONDS = 1800.0
"""For another process that makes a model: half a minute of work, much longer on a machine that is overloaded."""


def cache_folder() -> Path:
    """Return where converted models are kept: `GRPO_CACHE`, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(base) / "grpo-flow")


def model_folder(name: str) -> Path:
    """Return the place of a model in the cache folder."""
    return cache_folder() / "models" / name


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
        BusyError: another process has been making it for too long.
    """
    if is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock"), timeout=PATIENCE_SECONDS):
            if not is_whole(target):
                _make(target, make)
    except Timeout as error:
        raise BusyError(
            f"model.source {source}: another process has been making it for {PATIENCE_SECONDS:.0f} s; wait for it, or end it"
        ) from error
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"model.source {source}: cannot be kept in the cache folder {cache_folder()} ({cause(error)}); free some space, or "
            f"name a folder that you may write to in {CACHE_VARIABLE}"
        ) from error
    return target


def _make(target: Path, make: Callable[[Path], None]) -> None:
    """Make a model beside its place, then put it there; call it with the lock held."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed while it made it
    try:
        partial.mkdir()
        make(partial)
        readers = partial.stat().st_mode & 0o666  # by the umask; some libraries close their files to others
        for file in partial.iterdir():
            flush(file)
            file.chmod(readers)
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
