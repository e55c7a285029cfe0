"""The folder of a run or sweep that starts or works: a new one that nobody else has, held by one process, where it may lie.

A start holds the lock of its folder from its first moment: of two that begin in one folder, one is refused.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO

from grpo_core.errors import FolderError, JournalError
from grpo_core.machine.locks import holder_of, lock_soon
from grpo_core.machine.marker import Kind
from grpo_core.run.flow_folder import FlowDir

RUNS_FOLDER = Path("runs")
ROOTS_VARIABLE = "GRPO_RUN_ROOTS"
"""Where deployed flows may write: folders, separated as in PATH; unset = the worker's `runs/`."""

_started: dict[Path, IO[bytes]] = {}
"""Locks of folders in which this process has begun a start, until `holding` takes them over."""


def make_folder(name: str) -> Path:
    """Make a folder that nobody else has, named after the time and `name`: two runs may start in the same second.

    Raises:
        JournalError: nothing can be made below `runs/`.
    """
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        path = RUNS_FOLDER / (f"{stamp}-{name}" if number == 1 else f"{stamp}-{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise JournalError(f"{RUNS_FOLDER.resolve()}: no folder can be made in it ({error.strerror})") from error
        else:
            return path


@contextlib.contextmanager
def starting(flow_dir: FlowDir, kind: Kind) -> Iterator[None]:
    """Mark a folder as ours and hold its lock; where what is inside fails, the lock is freed, else `holding` takes it over.

    Raises:
        FolderError: the folder is not ours, or another flow starts or works in it.
    """
    flow_dir.mark(kind)
    lock = _locked(flow_dir)
    try:
        yield
    except BaseException:
        lock.close()
        raise
    _started[flow_dir.path.resolve()] = lock


@contextlib.contextmanager
def holding(flow_dir: FlowDir) -> Iterator[None]:
    """Keep every other flow out of a folder while inside; it must be ours.

    Raises:
        FolderError: the folder is not ours, or another flow works in it.
    """
    flow_dir.require_ours()
    lock = _started.pop(flow_dir.path.resolve(), None) or _locked(flow_dir)
    with lock:
        yield


def _locked(flow_dir: FlowDir) -> IO[bytes]:
    lock = flow_dir.open_lock()
    if not lock_soon(lock):
        holder = holder_of(lock)
        lock.close()
        noun = flow_dir.what.removesuffix(" dir")
        raise FolderError(f"{flow_dir.what} {flow_dir.path}: {holder} works on this {noun}; wait for it, or end it first")
    return lock


def allowed_roots(setting: str | None) -> tuple[Path, ...]:
    """Return the folders below which deployed flows may write.

    Args:
        setting: of GRPO_RUN_ROOTS: folders, separated as in PATH; None or empty = `runs/` of the working directory.
    """
    return tuple(Path(part).expanduser() for part in (setting or "").split(os.pathsep) if part) or (RUNS_FOLDER,)


def refuse_foreign_root(path: Path, roots: Sequence[Path], parameter: str = "run_dir") -> None:
    """Refuse a folder that does not lie below one of the roots, `..` and links resolved.

    >>> refuse_foreign_root(Path("runs/one"), [Path("runs")])
    >>> refuse_foreign_root(Path("runs/../src"), [Path("runs")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    grpo_core.errors.FolderError: run_dir runs/../src: is not below ...

    Args:
        path: the folder; need not exist.
        roots: where flows may write.
        parameter: what the folder was given as, for the message.

    Raises:
        FolderError: it is not below any of them.
    """
    resolved = path.resolve()
    if not any(root.resolve() in resolved.parents for root in roots):
        names = " or ".join(str(root.resolve()) for root in roots)
        raise FolderError(
            f"{parameter} {path}: is not below {names}, where deployed flows may write; choose a folder there, or let the "
            f"worker's owner add its parent to {ROOTS_VARIABLE} (folders separated by {os.pathsep!r}) and restart the worker"
        )
