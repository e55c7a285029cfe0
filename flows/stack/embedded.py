"""The embedded Prefect server of a command: private, and gone when the command is gone.

Prefect's own ephemeral server is open to everybody on this machine and to every page in a browser, its port can be taken by
somebody else before it listens, several first starts break each other's migration, and it outlives a command that is killed.
This one asks for a secret that only this command and its children know, gets a socket that the command has bound, starts under
a lock, and watches the command (`embedded_server.py`). The database is Prefect's usual one, so the history of flow runs stays.
"""

import atexit
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import prefect
import prefect.context
from filelock import FileLock
from prefect import get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_EPHEMERAL_ENABLED,
    PREFECT_SERVER_LOGGING_LEVEL,
    get_current_settings,
)

from flows.stack.commands import HOST, HOSTS_VARIABLE, loopback_hosts, past_proxies
from flows.stack.embedded_server import GRACE_SECONDS
from grpo_core.errors import MAX_FAULT_CHARACTERS, StackError, cause, raised_as
from grpo_core.machine.disk import FILE_MODE, private_folder
from grpo_core.run.child import python_path
from grpo_core.text import redact_uri
from tasks.process.context import EMBEDDED_VARIABLE

START_SECONDS = 300.0
SHOWN_LINES = 12
DATABASE = "prefect.db"


def start_embedded_server() -> None:
    """Start the server that Prefect would start with the first request, if it would; return once it answers.

    From then on `PREFECT_API_URL` and `PREFECT_API_AUTH_STRING` are set, for this process and for those that it starts.

    Raises:
        StackError: it does not start, or the server that the user has chosen cannot be used.
    """
    if PREFECT_API_URL.value() or not PREFECT_SERVER_EPHEMERAL_ENABLED.value():
        _require_chosen_server()
        return
    secret = f"grpo:{secrets.token_urlsafe(32)}"
    with raised_as(StackError, f"PREFECT_HOME {PREFECT_HOME.value()}: cannot be used ({{cause}})", OSError):
        home = private_folder(PREFECT_HOME.value())
        # One at a time: servers that make or migrate a database at once leave half a migration behind.
        with _first_start(home), tempfile.TemporaryFile() as log:
            port = _start(secret, log)
    address = f"http://{HOST}:{port}/api"
    os.environ.update(past_proxies(), PREFECT_API_URL=address, PREFECT_API_AUTH_STRING=secret, **{EMBEDDED_VARIABLE: address})
    prefect.context.refresh_global_settings_context()


@contextlib.contextmanager
def _first_start(home: Path) -> Iterator[None]:
    """Keep others out while the first server of this version of Prefect starts, which makes or migrates the database."""
    migrated = home / f"grpo-migrated-{prefect.__version__}"
    if migrated.exists() and (home / DATABASE).exists():
        yield
        return
    with FileLock(home / "grpo.lock", mode=FILE_MODE):
        yield
        migrated.touch(FILE_MODE)


def _start(secret: str, log: IO[bytes]) -> int:
    """Start a server and return its port once it answers."""
    with socket.create_server((HOST, 0)) as listener:  # ours from here on; once the server is dead it refuses connections
        port: int = listener.getsockname()[1]
        process = _spawn(listener, secret, log)
    atexit.register(_end, process)
    try:
        httpx.get(f"http://{HOST}:{port}/api/health", timeout=START_SECONDS, trust_env=False).raise_for_status()
    except httpx.HTTPError as error:
        raise StackError(_failure(error, secret, log)) from None
    return port


def _spawn(listener: socket.socket, secret: str, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    is_shown = PREFECT_SERVER_LOGGING_LEVEL.value() != "CRITICAL"  # --debug
    # A new database needs Prefect's blocks, although Prefect may remember that it has registered them.
    is_new = not (PREFECT_HOME.value() / DATABASE).exists()
    return subprocess.Popen(
        [sys.executable, "-m", "flows.stack.embedded_server", str(os.getpid()), str(listener.fileno())],
        stdin=subprocess.PIPE,
        stdout=None if is_shown else log,
        stderr=None if is_shown else subprocess.STDOUT,
        env={
            **os.environ,
            **get_current_settings().to_environment_variables(exclude_unset=True),
            **({} if is_shown else {"PREFECT_SERVER_LOGGING_LEVEL": "ERROR"}),
            **({"PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "0"} if is_new else {}),
            "PYTHONPATH": python_path(),
            "PYTHONSAFEPATH": "1",  # a folder `flows` where the user works is not ours
            "PREFECT_UI_ENABLED": "0",
            "PREFECT__SERVER_EPHEMERAL": "1",
            "PREFECT__SERVER_FINAL": "1",
            "PREFECT_SERVER_API_AUTH_STRING": secret,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{HOST}:{listener.getsockname()[1]}",
            HOSTS_VARIABLE: loopback_hosts(listener.getsockname()[1]),
        },
        pass_fds=(listener.fileno(),),
        start_new_session=True,  # away from what a terminal or `timeout` sends to the command's group
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(GRACE_SECONDS + 1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _failure(error: httpx.HTTPError, secret: str, log: IO[bytes]) -> str:
    log.seek(0)
    lines = redact_uri(log.read().decode(errors="replace").replace(secret, "***")).splitlines()
    last = "\n".join(lines[-SHOWN_LINES:])
    return (
        f"the embedded Prefect server does not start ({type(error).__name__}); its last output:\n{last}\n"
        "Start the command again (at a high load, later), or set PREFECT_API_URL to a server of yours (`grpo up` starts one), "
        f"or, where its database is damaged, move {PREFECT_HOME.value() / DATABASE} away: only Prefect's history is lost. "
        "--debug shows all of its output"
    )


def _require_chosen_server() -> None:
    """Ask the server that the user has chosen for its version.

    Raises:
        StackError: it cannot be reached, refuses the login, is no Prefect, or is of another major version.
    """
    try:
        with get_client(sync_client=True) as client:
            client.raise_for_api_version_mismatch()
    except Exception as error:  # Prefect wraps some of httpx's errors, and raises its own
        raise StackError(
            f"Prefect at PREFECT_API_URL ({PREFECT_API_URL.value()}) cannot be used: "
            f"{cause(error.__cause__ or error, MAX_FAULT_CHARACTERS)}. Start it, or correct PREFECT_API_URL and "
            "PREFECT_API_AUTH_STRING (`prefect config view --show-sources` shows where they are set), or unset both: then each "
            "command starts an embedded Prefect, unless PREFECT_SERVER_EPHEMERAL_ENABLED is false"
        ) from error
