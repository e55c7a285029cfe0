"""Servers that stay while their keeper lives: who keeps them, what is known of each, and their end. Loads no torch.

keeper.json    process id and start time of the keeper, with which the servers end
server-0.json  a server: its address and key, its processes, what it was started with, and which training uses it
server-0.lock  held by that training          server-0.log  the server's output
lock           held for a moment by who chooses a server

The folder is its owner's alone, and so is each record.
"""

import contextlib
import os
import re
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field
from pydantic.dataclasses import dataclass

from grpo_core.errors import SamplerError, cause, raised_as
from grpo_core.machine.disk import private_folder, remove
from grpo_core.machine.jsonfile import STORED, Count, build, parse_json, write_json
from grpo_core.machine.locks import waited_lock
from grpo_core.machine.process_id import ProcessId, identify, is_running

KEEP_VARIABLE = "GRPO_VLLM_KEEP"
"""Names the folder to a training, which takes a server from it and leaves it there; unset = a run ends its server."""
KEEPER_FILE, LOCK_FILE = "keeper.json", "lock"
RECORD_NAME = re.compile(r"server-(\d{1,6})\.json")
CHOICE_SECONDS = 120.0
"""Nobody chooses for longer: a server is started and asked outside of the folder's lock."""
KILL_SECONDS = 30.0
"""The kernel takes its time to free gigabytes."""
MOST_BYTES = 65536


@dataclass(frozen=True, kw_only=True, config=STORED)
class ServerFit:
    """What must be equal for a training to use a server that another has started."""

    python: str
    """Interpreter."""
    architecture: str
    """SHA-256 of the model's configuration and tokenizer; its weights are replaced before they are used."""
    dtype: str
    threads: int
    kv_cache_gib: int
    variables: dict[str, str]
    """Environment variables that choose kernels and devices."""


@dataclass(frozen=True, kw_only=True, config=STORED)
class ServerRecord:
    """A server in the folder."""

    port: Annotated[int, Field(gt=0, lt=65536)]
    """On loopback."""
    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{16,128}$")] = field(repr=False)
    keeper: ProcessId
    """With which it ends."""
    processes: Annotated[tuple[ProcessId, ...], Field(min_length=1)]
    """Its process group, the leader first."""
    fit: ServerFit
    context: Count
    """Tokens of the longest prompt and completion together."""
    model: str
    """Folder from which it was started."""
    used_by: ProcessId | None
    """The training that uses it; None = free. One that was killed has left the server in a state that nobody knows."""

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


def keeper_in(folder: Path) -> ProcessId | None:
    """Return who keeps servers in a folder; None where nobody does any more."""
    try:
        keeper = build(ProcessId, parse_json(_read_private(folder / KEEPER_FILE)))
    except (OSError, ValueError):
        return None
    return keeper if is_running(keeper) else None


@contextlib.contextmanager
def keeping_servers(folder: Path) -> Iterator[Mapping[str, str]]:
    """Keep servers in a folder while inside, and end them; yield the environment variables with which trainings find them.

    Where somebody keeps servers for this process already, they do so for its trainings as well.

    Raises:
        SamplerError: the folder cannot be used.
    """
    if (outer := os.environ.get(KEEP_VARIABLE)) and keeper_in(Path(outer)) is not None:
        yield {}
        return
    folder = folder.resolve()
    with raised_as(SamplerError, f"{folder}: vLLM servers cannot be kept in it ({{cause}})", OSError):
        private_folder(folder)
        end_servers(folder)  # of a keeper that was killed
        write_json(folder / KEEPER_FILE, asdict(identify(os.getpid())), private=True)
    try:
        yield {KEEP_VARIABLE: str(folder)}
    finally:
        (folder / KEEPER_FILE).unlink(missing_ok=True)
        end_servers(folder)


def end_servers(folder: Path) -> None:
    """End every server of a folder and remove its record; what is no record is removed as well.

    Raises:
        SamplerError: a process does not end.
        OSError: the folder cannot be written.
    """
    if not folder.is_dir():
        return
    with waited_lock(folder / LOCK_FILE, "chooses a vLLM server", patience=CHOICE_SECONDS):
        for path in record_files(folder):
            try:
                record = read_record(path)
            except SamplerError:
                record = None
            if record is not None:
                end_kept_server(record)
            remove(path)


def end_kept_server(record: ServerRecord) -> None:
    """Kill the processes of a server, exactly those: a number that is another process's by now is left alone.

    Raises:
        SamplerError: one does not end.
    """
    known = {*record.processes, *group_of(record.processes[0])}
    if not kill_processes(known, KILL_SECONDS):
        raise SamplerError(f"the vLLM server of process {record.processes[0].pid} was killed and has not ended")


def record_files(folder: Path) -> list[Path]:
    """Return the records in a folder, by number, whatever they hold."""
    try:
        found = [(int(match[1]), path) for path in folder.iterdir() if (match := RECORD_NAME.fullmatch(path.name))]
    except OSError:
        return []
    return [path for _, path in sorted(found)]


def read_record(path: Path) -> ServerRecord:
    """Return what is known of a server.

    Raises:
        SamplerError: the file is no record of ours; the message quotes nothing of it, as it may hold the key.
    """
    try:
        return build(ServerRecord, parse_json(_read_private(path)))
    except (OSError, ValueError) as error:
        why = cause(error).partition(", got ")[0]
        why = "a field is unknown" if why.endswith("is unknown") else why
    raise SamplerError(f"{path}: is no record of a vLLM server ({why})")


def write_record(path: Path, record: ServerRecord) -> None:
    """Write what is known of a server, for its owner alone.

    Raises:
        OSError: it cannot be written.
    """
    write_json(path, asdict(record), private=True)


def _read_private(path: Path) -> bytes:
    """Return the content of a small file of our own.

    Raises:
        OSError: it cannot be read, or is a link or no regular file.
        ValueError: others could have read or written it, or it is too long.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        facts = os.fstat(file.fileno())
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise ValueError("it is not its owner's alone")
        if facts.st_size > MOST_BYTES:
            raise ValueError(f"it has {facts.st_size} bytes, at most {MOST_BYTES} are expected")
        return file.read(MOST_BYTES)


def group_of(leader: ProcessId) -> tuple[ProcessId, ...]:
    """Return the processes of the group that a process leads, itself first; none once it has ended."""
    if not is_running(leader):
        return ()
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if process.pid != leader.pid and os.getpgid(process.pid) == leader.pid:
                members.append(identify(process.pid))
    return (leader, *members)


def kill_processes(processes: Iterable[ProcessId], patience: float) -> bool:
    """Kill processes and wait for their end, at most `patience` seconds; return whether none is left."""
    remaining = [process for process in processes if is_running(process)]
    for process in remaining:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + patience
    while (remaining := [process for process in remaining if is_running(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not remaining
