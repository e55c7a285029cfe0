"""The folder of a stack, its owner's alone: what was started, and the secret of its Prefect, which only our requests carry.

.grpo/stack.json      ports and choices            .grpo/logs/<service>.log
.grpo/prefect/        Prefect's home and database  .grpo/mlflow/  MLflow's database and artifacts
.grpo/prefect/secret  what Prefect asks for        .grpo/grpo-stack  says that the folder is a stack's
"""

import os
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import TypeAdapter

from flows.stack.commands import HOST, authorization
from grpo_core.errors import StackError
from grpo_core.machine.disk import private_folder, write_private

MARKER, FILE = "grpo-stack", "stack.json"
MARKER_TEXT = "The folder of a local stack: databases, artifacts, logs and the secret of its Prefect. Made by `grpo up`.\n"
BUSY_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between the attempts at a request that Prefect is too busy to answer."""
REQUEST_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The stack of one folder."""

    folder: Path
    """Absolute."""
    prefect_port: int
    mlflow_port: int
    slots: int = 1
    """Processes of runs at a time, whichever worker takes the runs."""
    workers: int = 1
    allow_reward: tuple[str, ...] = ()
    """Modules whose functions deployments may name as rewards."""
    project: Path
    """Absolute path of the folder in which it was started: deployments run there, and its settings file lies there."""

    @property
    def prefect_address(self) -> str:
        """Prefect's UI."""
        return f"http://{HOST}:{self.prefect_port}"

    @property
    def api(self) -> str:
        """Prefect's API."""
        return f"{self.prefect_address}/api"

    @property
    def mlflow_address(self) -> str:
        """MLflow's UI and tracking server."""
        return f"http://{HOST}:{self.mlflow_port}"

    @property
    def secret_file(self) -> Path:
        """Where the secret is that its Prefect asks for."""
        return self.folder / "prefect" / "secret"

    @property
    def secret(self) -> str:
        """What its Prefect asks for; made once, so that a browser in which it was typed stays let in."""
        if not self.secret_file.exists():
            private_folder(self.secret_file.parent)
            write_private(self.secret_file, secrets.token_urlsafe(32) + "\n")
        return self.secret_file.read_text(encoding="utf-8").strip()

    def log_file(self, service: str) -> Path:
        """Output of a service."""
        return self.folder / "logs" / f"{service}.log"

    def write(self) -> None:
        """Remember it, until the file is removed."""
        write_private(self.folder / FILE, _STACK.dump_json(self, indent=2).decode())


_STACK = TypeAdapter(Stack)


def read_stack(folder: Path) -> Stack | None:
    """Return the stack of a folder, None where none was started.

    Raises:
        StackError: the folder is another user's or a link.
    """
    _refuse_foreign_folder(folder)
    file = folder / FILE
    return _STACK.validate_json(file.read_bytes()) if file.exists() else None


def claim_folder(folder: Path) -> None:
    """Make the folder of a stack, or take the one that is there; only its owner can read it from then on.

    Raises:
        StackError: it belongs to somebody or something else.
    """
    _refuse_foreign_folder(folder)
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise StackError(f"{folder}: is not empty and holds no stack; give `--folder` a new or empty folder")
    private_folder(folder)
    write_private(folder / MARKER, MARKER_TEXT)


def _refuse_foreign_folder(folder: Path) -> None:
    """Refuse a folder that another user can change, or whose place a link decides."""
    facts = folder.lstat() if os.path.lexists(folder) else None
    if facts is not None and not (stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()):
        raise StackError(f"{folder}: is a link, a file or another user's; give `--folder` a folder of your own")


def prefect_client(stack: Stack, timeout: float = REQUEST_SECONDS) -> httpx.Client:
    """Return a client of the stack's Prefect API that carries its secret.

    Args:
        stack: whose API.
        timeout: of each request, in seconds.
    """
    # trust_env: the secret of a server on this machine is nothing for a proxy.
    return httpx.Client(
        base_url=stack.api,
        timeout=timeout,
        headers=authorization(stack.secret),
        trust_env=False,
        transport=_PatientTransport(),
    )


class _PatientTransport(httpx.HTTPTransport):
    """Repeats a request that Prefect answers with 503, as it does while another connection locks its SQLite file."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, again after each pause as long as the answer is 503; return the last answer."""
        for pause in BUSY_PAUSES:
            response = super().handle_request(request)
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                return response
            response.close()
            time.sleep(pause)
        return super().handle_request(request)
