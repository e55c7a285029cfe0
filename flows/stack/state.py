"""The folder of a stack, its owner's alone: what was started, and the secret of its Prefect, which only our requests carry.

.grpo/stack.json      ports and processes          .grpo/logs/<service>.log
.grpo/prefect/        Prefect's home and database  .grpo/mlflow/  MLflow's database and artifacts
.grpo/prefect/secret  what Prefect asks for        .grpo/grpo-stack  says that the folder is a stack's
.grpo/vllm/           vLLM servers that stay
"""

import base64
import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import httpx
from pydantic import TypeAdapter

from flows.stack.processes import is_alive
from grpo_core.errors import StackError, cause
from grpo_core.machine.disk import private_folder, write_private
from grpo_core.machine.jsonfile import read_json, write_json
from grpo_core.machine.process_id import ProcessId

MARKER = "grpo-stack"
MARKER_TEXT = "The folder of a local stack: databases, artifacts, logs and the secret of its Prefect. Made by `grpo up`.\n"
PARTS_BEFORE_THE_MARKER = {"stack.json", "stack.partial", "lock", "logs", "prefect", "mlflow", "slots"}
"""What `grpo up` put into this folder before it marked it."""
BUSY_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Seconds between the attempts at a request that Prefect is too busy to answer."""
REQUEST_SECONDS = 3.0
ACCEPTED = re.compile(r"[!-~]{16,}")
"""Printable ASCII without spaces: it travels in headers and is typed into a browser."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The stack of one folder."""

    folder: Path
    prefect_port: int
    mlflow_port: int
    slots: int
    """Runs at a time, whichever worker takes them."""
    workers: int = 1
    allow_reward: tuple[str, ...] = ()
    """Modules whose functions deployments may name as rewards; a stack of an earlier version has none."""
    vllm: str = ""
    """Interpreter of the environment with vLLM, whose servers stay from run to run; empty = each run ends its own."""
    project: Path
    """Absolute path of the folder in which it was started: deployments run there, and its settings file lies there."""
    processes: dict[str, ProcessId] = field(default_factory=dict)
    """By service name."""

    @property
    def vllm_folder(self) -> Path:
        """Where its vLLM servers are known."""
        return self.folder.resolve() / "vllm"

    @property
    def prefect_address(self) -> str:
        """Prefect's UI."""
        return f"http://127.0.0.1:{self.prefect_port}"

    @property
    def api(self) -> str:
        """Prefect's API."""
        return f"{self.prefect_address}/api"

    @property
    def mlflow_address(self) -> str:
        """MLflow's UI and tracking server."""
        return f"http://127.0.0.1:{self.mlflow_port}"

    def log_file(self, service: str) -> Path:
        """Output of a service."""
        return self.folder / "logs" / f"{service}.log"

    def alive(self, service: str) -> bool:
        """Return whether the process that was started as this service still runs."""
        return service in self.processes and is_alive(self.processes[service])

    def with_process(self, service: str, process: ProcessId) -> Self:
        """Return the stack with one more process, after writing it down."""
        stack = replace(self, processes={**self.processes, service: process})
        stack.write()
        return stack

    def write(self) -> None:
        """Remember it."""
        write_json(_file(self.folder), _STACK.dump_python(self, mode="json", exclude={"folder"}))

    def forget(self) -> None:
        """Remove the file by which a stack is known; databases, artifacts and logs stay."""
        _file(self.folder).unlink(missing_ok=True)


_STACK = TypeAdapter(Stack)


def read_stack(folder: Path) -> Stack | None:
    """Return the stack of a folder, None where none was started.

    Raises:
        StackError: its file cannot be read, or the folder is another user's or a link.
    """
    check_owner(folder)
    try:
        return _STACK.validate_python({**read_json(_file(folder)), "folder": folder})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StackError(
            f"{_file(folder)}: cannot be read ({cause(error)}); end its processes by hand and remove it"
        ) from error


def _file(folder: Path) -> Path:
    return folder / "stack.json"


def claim_folder(folder: Path) -> None:
    """Make the folder of a stack, or take the one that is there; only its owner can read it from then on.

    Raises:
        StackError: it belongs to somebody or something else.
    """
    check_owner(folder)
    try:
        if not folder.exists():
            private_folder(folder)
        # Files of an `up` that is at this very line, or was killed there, are no contents.
        names = {path.name for path in folder.iterdir() if not path.name.startswith(f".{MARKER}.")}
        is_older = names <= PARTS_BEFORE_THE_MARKER and not names.isdisjoint({"lock", "stack.json"})
        if names and MARKER not in names and not is_older:
            raise StackError(
                f"{folder}: is not empty and holds no stack ({sorted(names)[0]!r} ...); give `--folder` a new or empty folder"
            )
        private_folder(folder)
        write_private(folder / MARKER, MARKER_TEXT)
    except OSError as error:
        raise StackError(f"{folder}: cannot be the folder of the stack ({error}); give another with `--folder`") from error


def check_owner(folder: Path) -> None:
    """Refuse a folder that another user can change, or whose place a link decides.

    Raises:
        StackError: it is a link, a file or another user's.
    """
    try:
        facts = folder.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StackError(f"{folder}: cannot be read ({error}); give another with `--folder`") from error
    if stat.S_ISLNK(facts.st_mode):
        raise StackError(f"{folder}: is a link to {folder.readlink()}; give `--folder` the folder itself")
    if not stat.S_ISDIR(facts.st_mode):
        raise StackError(f"{folder}: is a file; give `--folder` a folder")
    if facts.st_uid != os.geteuid():
        raise StackError(f"{folder}: belongs to another user (uid {facts.st_uid}); give `--folder` a folder of your own")


def secret_file(folder: Path) -> Path:
    """Return where the secret of the stack in a folder is."""
    return folder / "prefect" / "secret"


def read_secret(folder: Path) -> str | None:
    """Return the secret of the stack in a folder; None if there is none, or one that others could have read or changed."""
    try:
        descriptor = os.open(secret_file(folder), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            return None
        secret = file.read().strip()
    return secret if ACCEPTED.fullmatch(secret) else None


def ensure_secret(folder: Path) -> None:
    """Make the secret of the stack in a folder, unless there is one: a browser in which it was typed stays let in.

    Raises:
        StackError: it cannot be written.
    """
    if read_secret(folder) is not None:
        return
    try:
        private_folder(folder / "prefect")
        write_private(secret_file(folder), secrets.token_urlsafe(32) + "\n")
    except OSError as error:
        raise StackError(f"{secret_file(folder)}: cannot be written ({error})") from error


def prefect_client(stack: Stack, timeout: float = REQUEST_SECONDS, pauses: Sequence[float] = BUSY_PAUSES) -> httpx.Client:
    """Return a client of the stack's Prefect API that carries its secret.

    Args:
        stack: whose API.
        timeout: of each request, in seconds.
        pauses: as `BUSY_PAUSES`.
    """
    secret = read_secret(stack.folder)
    headers = {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()} if secret else {}
    # trust_env: the secret of a server on this machine is nothing for a proxy.
    return httpx.Client(
        base_url=stack.api, timeout=timeout, headers=headers, trust_env=False, transport=_RetryingTransport(pauses)
    )


class _RetryingTransport(httpx.HTTPTransport):
    """Repeats a request that Prefect answers with 503, as it does while another connection locks its SQLite file."""

    def __init__(self, pauses: Sequence[float]) -> None:
        """Repeat a request after each of these pauses."""
        super().__init__()
        self._pauses = pauses

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, again after each pause as long as the answer is 503; return the last answer."""
        for pause in self._pauses:
            response = super().handle_request(request)
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                return response
            response.close()
            time.sleep(pause)
        return super().handle_request(request)
