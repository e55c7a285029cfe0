"""Files on a disk, which may be full: written whole or not at all, some for their owner alone.

A full disk is recognised whichever library meets it. What was whole before stays whole: a journal line is taken back, a
checkpoint or a table is written beside the others and removed if it cannot be finished. That also frees the space that the last
words of the run need.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from grpo_core.errors import DiskFullError, name_of, shown

FULL = (errno.ENOSPC, errno.EDQUOT)
"""The disk is full; the user's share of it is."""
PARTIAL = ".partial"
"""How the name of what is being written ends; a killed process leaves it."""
HERE, EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2(2)."""
FOLDER_MODE, FILE_MODE = 0o700, 0o600
"""Of what only its owner may read: secrets, and whatever may hold one."""


def is_full_disk(error: BaseException) -> bool:
    """Return whether an error comes from a full disk: itself, or one that it was raised from or during.

    >>> is_full_disk(OSError(errno.ENOSPC, "No space left on device")), is_full_disk(OSError(errno.EIO, "I/O error"))
    (True, False)
    """
    link: BaseException | None = error
    while link is not None:
        # In words: safetensors raises an error of its own.
        is_full = isinstance(link, DiskFullError) or (isinstance(link, OSError) and link.errno in FULL)
        if is_full or any(f"os error {number}" in str(link) for number in FULL):
            return True
        link = link.__cause__ or link.__context__
    return False


@contextlib.contextmanager
def whole_or_gone(what: str, path: Path) -> Iterator[None]:
    """Remove `path`, a file or a folder that is written inside, if it could not be finished.

    Args:
        what: what is being written, for the message.
        path: where.

    Raises:
        DiskFullError: the disk is full.
    """
    try:
        yield
    except BaseException as error:
        remove(path)
        if is_full_disk(error):
            raise DiskFullError(f"disk full: {what} could not be written to {path}") from error
        raise


def private_folder(path: Path) -> Path:
    """Make a folder, or take the one that is there, and close it to everybody but its owner; return it.

    Raises:
        OSError: it cannot be made, or belongs to another user.
    """
    path.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    path.chmod(FOLDER_MODE)  # one that was there before; `mode` is also cut by the umask
    return path


@contextlib.contextmanager
def durable(path: Path) -> Iterator[Path]:
    """Yield a name beside `path`, to be written inside; then it takes the place of `path`, and survives a power failure.

    Whoever reads `path`, also after a kill or a power failure, finds all of it or what was there before. What a record vouches
    for is written in here, and the record afterwards.

    Raises:
        OSError: it cannot be flushed or renamed.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    remove(partial)  # of a process that was killed: in a container, process ids come again
    try:
        yield partial
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    except BaseException:
        remove(partial)
        raise


def durable_folder(path: Path) -> Path:
    """Make a folder whose name survives a power failure, or take the one that is there; return it.

    Raises:
        OSError: it cannot be made.
    """
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        flush(path.parent)
    return path


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file: whoever reads it, also after a kill or a power failure, finds all of it or what was there before.

    Args:
        path: the file.
        content: text is written as UTF-8.
        mode: rights of the file, at every moment; the umask takes its part of them.

    Raises:
        OSError: it cannot be written.
    """
    with durable(path) as partial:
        # O_EXCL: nobody's link or file with looser rights is written into.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)


def write_private(path: Path, text: str) -> None:
    """Write a file as `write_whole` does, readable by its owner alone.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, text, FILE_MODE)


def append_private(path: Path) -> IO[bytes]:
    """Open a file that only its owner can read, to append to it; one that others could read is closed to them.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)
    return os.fdopen(descriptor, "ab")


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Return once the content of a file, or the names in a folder, would survive a power failure.

    Raises:
        OSError: the disk reports an error.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_all(folder: Path) -> None:
    """Do what `flush` does for a folder and all that is in it.

    Raises:
        OSError: the disk reports an error.
    """
    for path in (*folder.rglob("*"), folder):
        flush(path)


def exchange(one: Path, other: Path) -> str | None:
    """Let two files or folders of one file system swap their names in one step; return why that is not possible here.

    Python has no call for it, and two renames would have a moment in which one of the names is nobody's.
    """
    names = (os.fsencode(path) for path in (one, other))
    try:
        failed = ctypes.CDLL(None, use_errno=True).renameat2(HERE, next(names), HERE, next(names), EXCHANGE)
    except AttributeError:
        return "the C library has no renameat2"
    return os.strerror(ctypes.get_errno()) if failed else None


def remove(path: Path) -> None:
    """Remove a file or a folder, or what can be removed of it."""
    try:
        path.unlink(missing_ok=True)  # first: rmtree would wait for ever at a named pipe
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Let a file that is replaced and never changed have another name; on another disk, copy it.

    Raises:
        OSError: it cannot be read, or the target is there or cannot be written.
    """
    try:
        Path(target).hardlink_to(source)
    except FileExistsError:
        raise
    except OSError:  # another disk
        with durable(Path(target)) as partial:
            shutil.copy2(source, partial)


def free_bytes(path: Path) -> float:
    """Return the bytes that this user can still write where `path` is, or would be; infinity where a mount does not tell."""
    usage = shutil.disk_usage(next(place for place in (path, *path.resolve().parents) if place.exists()))
    return usage.free if usage.total else math.inf


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; links are not followed, and what is just being removed does not count."""
    total = 0
    for path in (Path(root, name) for root, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a `sqlite:` address, None for any other address, a broken one, and a database in memory."""
    if not uri.lower().startswith("sqlite"):
        return None
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        name = make_url(uri).database
    except ArgumentError:
        return None
    return None if not name or name == ":memory:" or name.startswith("file:") else Path(name).absolute()


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file."""

    dtype: str
    """By the name that the format has for it, such as F32 or BF16."""
    shape: tuple[int, ...]


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Return {name: tensor} of a safetensors file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no safetensors file, or one that is cut off.
    """
    try:
        with safe_open(file, framework="np") as tensors:  # "pt" would reserve memory for all of them
            parts = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118  (it is no dict)
            return {name: StoredTensor(part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except SafetensorError as error:
        raise ValueError(
            f"{file.name}: {error}; copy or download it again (`git lfs pull` replaces a pointer by its file)"
        ) from error


T = TypeVar("T")
STORED = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""Settings of a pydantic dataclass that is kept as JSON: nothing is converted, nothing unknown is taken."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
Norm = Annotated[float, Field(ge=0)]
FAULTS = {"missing": "is missing", "unexpected_keyword_argument": "is unknown"}
"""What pydantic's errors about fields are called here."""


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON.
    """
    return json.loads(path.read_bytes())


def jsonable(value: Any) -> Any:
    """Return a value as plain JSON values; arrays and NumPy scalars become lists and numbers, the rest text."""
    return json.loads(json.dumps(value, default=lambda item: item.tolist() if hasattr(item, "tolist") else str(item)))


def json_copy(value: Any) -> Any:
    """Return a copy of plain JSON values in which each list and object is a new one, however often it occurs in them."""
    if value is None or isinstance(value, str | int | float):  # most are: an abstract class is asked slowly
        return value
    if isinstance(value, Mapping):
        return {key: json_copy(item) for key, item in value.items()}
    return [json_copy(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """Write a JSON file: whoever reads it, also after a kill or a power failure, finds all of it or what was there before.

    Args:
        path: the file.
        value: what it is to hold.
        private: whether only its owner may read it.

    Raises:
        OSError: it cannot be written.
    """
    (write_private if private else write_whole)(path, json.dumps(value, indent=2) + "\n")


def append_json(path: Path, value: Any) -> None:
    """Append one JSON line, in the place of a last line that was torn; it is on disk when this returns.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(value).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[bytes]:
    """Return the whole lines of a file that `append_json` writes: none where there is no file, a torn last line is dropped.

    Raises:
        OSError: it cannot be read.
    """
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def build(kind: type[T], fields: Any) -> T:
    """Return what JSON fields hold as a `kind`: a pydantic dataclass with the settings STORED, or whatever pydantic checks.

    Raises:
        ValueError: names the first field that is missing, unknown, or of another type, and its value.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(fields))
    except ValidationError as error:
        fault = error.errors()[0]
        name, is_missing = ".".join(map(name_of, fault["loc"])), fault["type"] == "missing"
        what = FAULTS.get(fault["type"], fault["msg"].lower().removeprefix("value error, "))
        got = "" if is_missing else f", got {shown(fault['input'])}"
        raise ValueError(f"{name or 'it'}: {what}{got}") from error
