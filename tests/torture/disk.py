"""A disk that loses its power: what was flushed stays, everything else is gone.

The process under test runs with `os.fsync`, `os.replace`, `os.rename` and the exchange of two folders wrapped. It notes how
long each file was and which names each folder had when they were last flushed, and dies of SIGKILL at one of these calls. `cut`
then takes the files back to what was noted: contents to their length then, names to the files that they had then. Removals are
taken as durable, so a file that was removed does not come back.
"""

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.export import policy_folder as exports


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where the power goes: at the nth call that matches, as `fsync run/journal.jsonl` or `name run/eval/base.json` are."""

    name: str
    call: str
    """A regular expression."""
    nth: int = 1
    after: bool = False
    """Once the call is done, not before it."""


class Disk:
    """What of the files below a folder has been flushed."""

    def __init__(self, root: Path, cut: Cut | None, note: Path) -> None:
        """Take all that is there as flushed; `note` is a file outside of `root`, beside which replaced files are kept."""
        self._root, self._cut, self._note, self._left = root, cut, note, cut.nth if cut else 0
        self._sizes: dict[int, int] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._lock = threading.RLock()
        for path in (root, *root.rglob("*")):
            self._flushed(path)

    def install(self) -> None:
        """Wrap the calls of this process."""
        fsync = os.fsync

        def flushing(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self._call(f"fsync {self._of(path)}", lambda: fsync(descriptor), lambda: self._flushed(path))

        os.fsync = flushing
        for owner, name in ((os, "replace"), (os, "rename"), (exports, "exchange")):
            self._wrap(owner, name)

    def is_flushed(self, path: Path) -> bool:
        """Return whether a file would be there after a power failure, all of it and under its name."""
        facts, folder = path.stat(), self._names.get(path.parent.stat().st_ino, {})
        return self._sizes.get(facts.st_ino) == facts.st_size and folder.get(path.name) == facts.st_ino

    def _wrap(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def naming(source: Any, target: Any, **options: Any) -> Any:
            path = Path(target)
            if path.is_file():
                inode = path.stat().st_ino
                kept = self._note.parent / str(inode)
                if inode in self._sizes and not kept.exists():
                    os.link(path, kept)
            return self._call(f"name {self._of(path)}", lambda: real(source, target, **options))

        setattr(owner, name, naming)

    def _of(self, path: Path) -> str:
        path = path.absolute()
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)

    def _flushed(self, path: Path) -> None:
        if path.is_dir():
            self._names[path.stat().st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        elif path.exists():
            self._sizes[path.stat().st_ino] = path.stat().st_size

    def _call(self, what: str, real: Callable[[], Any], done: Callable[[], None] = lambda: None) -> Any:
        with self._lock:
            is_it = self._cut is not None and re.fullmatch(self._cut.call, what) is not None
            self._left -= is_it
            dies = is_it and self._left == 0
            if dies and self._cut is not None and not self._cut.after:
                self._die()
            result = real()
            done()
            if dies:
                self._die()
            return result

    def _die(self) -> None:
        self._note.write_text(json.dumps({"sizes": self._sizes, "names": self._names}))
        os.kill(os.getpid(), signal.SIGKILL)


def flushed_bytes(file: Path, note: Path) -> int:
    """Return how much of a file had been flushed when the power went."""
    sizes: dict[str, int] = json.loads(note.read_text())["sizes"]
    return sizes.get(str(file.stat().st_ino), 0) if file.exists() else 0


def cut(root: Path, note: Path) -> list[str]:
    """Take the files below `root` back to what had been flushed; return what was lost."""
    facts = json.loads(note.read_text())
    lost: list[str] = []
    _cut_folder(root, root, facts["names"], {int(inode): size for inode, size in facts["sizes"].items()}, note.parent, lost)
    return lost


def _cut_folder(
    root: Path, folder: Path, names: dict[str, dict[str, int]], sizes: dict[int, int], kept: Path, lost: list[str]
) -> None:
    flushed = names.get(str(folder.stat().st_ino), {})
    for name, inode in flushed.items():
        old, now = kept / str(inode), {entry.inode(): folder / entry.name for entry in os.scandir(folder)}
        if inode in now and now[inode].name != name:
            if (folder / name).exists():
                (folder / name).rename(folder / f"{name}.lost")
            now[inode].rename(folder / name)
        elif inode not in now and old.exists():
            old.replace(folder / name)
            lost.append(f"{(folder / name).relative_to(root)} is the one before")
    for entry in list(os.scandir(folder)):
        path = folder / entry.name
        if flushed.get(entry.name) != entry.inode():
            lost.append(str(path.relative_to(root)))
            _remove(path)
        elif path.is_dir():
            _cut_folder(root, path, names, sizes, kept, lost)
        elif path.stat().st_size > sizes.get(entry.inode(), 0):
            lost.append(f"{path.relative_to(root)} from byte {sizes.get(entry.inode(), 0)} on")
            os.truncate(path, sizes.get(entry.inode(), 0))


def _remove(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
    else:
        path.unlink()
