"""Models that are made here and kept: made once, whole or not at all, and made again where a file of them was damaged.

A model is made by one process, under a lock, in a folder beside its place, and renamed; others wait and use it. A list of its
files, `made.manifest`, is part of it. A finished model is read without the lock, also from a folder that cannot be written.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_core.errors import ModelError, cause
from grpo_core.machine.disk import flush, is_full_disk, sha256_of
from grpo_core.machine.jsonfile import read_json, write_json
from grpo_core.machine.locks import waited_lock

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "GRPO_CACHE"
MADE_FILE, MODEL_FILE = "made.manifest", "config.json"
"""The first is no `*.json`: those decide how a tokenizer works, and are hashed as such."""
PATIENCE_SECONDS = 1800.0
"""For another process that makes a model: half a minute of work, much longer on a machine that is overloaded."""


def cache_folder() -> Path:
    """Return where converted models are kept: `GRPO_CACHE`, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(base) / "grpo-flow")


def model_folder(name: str) -> Path:
    """Return the place of a model in the cache folder."""
    return cache_folder() / "models" / name


def made_once(source: str, target: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder of a model, made where there is none that is whole.

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
        with waited_lock(target.with_name(f".{target.name}.lock"), f"makes the model {source}", patience=PATIENCE_SECONDS):
            if not is_whole(target):
                began = time.monotonic()
                _replace(source, target, make)
                logger.info("made %s in %.0f s: %s", source, time.monotonic() - began, target)
    except Exception as error:
        is_full = is_full_disk(error)
        if not is_full and not (isinstance(error, OSError) and error.errno is not None):
            raise  # of the making itself
        way_out = "free some space, or name a folder on another disk" if is_full else "name a folder that you may write to"
        raise ModelError(
            f"model.source {source}: cannot be kept in the cache folder {cache_folder()} ({cause(error)}); {way_out} "
            f"in {CACHE_VARIABLE}"
        ) from error
    return target


def is_whole(target: Path) -> bool:
    """Return whether a model is there with every file as it was made.

    Sizes and times are compared, and contents where only the time is another one: the folder was copied.
    """
    if not (target / MODEL_FILE).is_file():
        return False
    try:
        made = read_json(target / MADE_FILE)
    except (OSError, ValueError):
        return False
    return (
        isinstance(made, dict)
        and MODEL_FILE in made
        and all(isinstance(facts, dict) and _is_unchanged(target / Path(name).name, facts) for name, facts in made.items())
    )


def _is_unchanged(file: Path, facts: Mapping[str, Any]) -> bool:
    try:
        found = file.stat()
        is_as_long = found.st_size == facts.get("bytes")
        return is_as_long and (found.st_mtime_ns == facts.get("modified_ns") or sha256_of(file) == facts.get("sha256"))
    except OSError:
        return False


def _replace(source: str, target: Path, make: Callable[[Path], None]) -> None:
    """Make a model beside its place, then put it there; call it with the lock held."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed while it made it
    try:
        partial.mkdir()
        make(partial)
        _list_files(partial)
        if target.exists():
            logger.warning("the model %s in %s is damaged and was made again", source, target)
            shutil.rmtree(target)
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _list_files(folder: Path) -> None:
    made, readers = {}, folder.stat().st_mode & 0o666  # by the umask; some libraries close their files to others
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        flush(file)
        file.chmod(readers)
        facts = file.stat()
        made[file.name] = {"bytes": facts.st_size, "modified_ns": facts.st_mtime_ns, "sha256": sha256_of(file)}
    write_json(folder / MADE_FILE, made)
