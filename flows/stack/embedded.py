"""The embedded Prefect server of a command: private, and gone when the command is gone.

Prefect's own ephemeral server is open to everybody on this machine and to every page in a browser, its port can be taken by
somebody else before it listens, several first starts break each other's migration, and it outlives a command that is killed.
This one asks for a secret that only this command and its children know, gets a socket that the command has bound, starts under
a lock, and watches the command. The database is Prefect's usual one, so the history of flow runs stays.

`python -m flows.stack.embedded PARENT LISTENER` is the server: a process id and a file descriptor.
"""

import atexit
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from select import select
from typing import IO

import httpx
import prefect
import prefect.context
import uvicorn
from filelock import FileLock
from prefect import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_SERVER_EPHEMERAL_ENABLED, get_current_settings

from flows.stack.commands import FACTORY, HOST, HOSTS_VARIABLE, loopback_hosts, past_proxies
from grpo_core.errors import MAX_FAULT_CHARACTERS, StackError, cause, raised_as
from grpo_core.machine.disk import FILE_MODE, private_folder
from grpo_core.run.child import python_path
from grpo_core.text import redact_uri
from tasks.process.context import EMBEDDED_VARIABLE

START_SECONDS = 300.0
GRACE_SECONDS = 4.0
"""How long a server that has started may take to close its database."""
POLL_SECONDS = 0.5
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
        migrated = home / f"grpo-migrated-{prefect.__version__}"
        is_first = not (migrated.exists() and (home / DATABASE).exists())
        # One at a time: servers that make or migrate a database at once leave half a migration behind.
        lock = FileLock(home / "grpo.lock", mode=FILE_MODE) if is_first else contextlib.nullcontext()
        with lock, tempfile.TemporaryFile() as log:
            address = f"http://{HOST}:{_start(secret, log)}/api"
            migrated.touch(FILE_MODE)
    os.environ.update(past_proxies(), PREFECT_API_URL=address, PREFECT_API_AUTH_STRING=secret, **{EMBEDDED_VARIABLE: address})
    prefect.context.refresh_global_settings_context()


def _start(secret: str, log: IO[bytes]) -> int:
    """Start a server and return its port once it answers."""
    with socket.create_server((HOST, 0)) as listener:  # ours from here on; once the server is dead it refuses connections
        port: int = listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.stack.embedded", str(os.getpid()), str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=_environment(secret, port),
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # away from what a terminal or `timeout` sends to the command's group
        )
    atexit.register(_end, process)
    try:
        httpx.get(f"http://{HOST}:{port}/api/health", timeout=START_SECONDS, trust_env=False).raise_for_status()
    except httpx.HTTPError as error:
        log.seek(0)
        lines = redact_uri(log.read().decode(errors="replace").replace(secret, "***")).splitlines()
        raise StackError(
            f"the embedded Prefect server does not start ({type(error).__name__}); its last output:\n"
            + "\n".join(lines[-SHOWN_LINES:])
            + "\nStart the command again (at a high load, later), or set PREFECT_API_URL to a server of yours (`grpo up` "
            f"starts one), or move a damaged database, {PREFECT_HOME.value() / DATABASE}, away: only Prefect's history is lost"
        ) from None
    return port


def _environment(secret: str, port: int) -> dict[str, str]:
    # A new database needs Prefect's blocks, although Prefect may remember that it has registered them.
    is_new = not (PREFECT_HOME.value() / DATABASE).exists()
    return {
        **os.environ,
        **get_current_settings().to_environment_variables(exclude_unset=True),
        **({"PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "0"} if is_new else {}),
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        "PYTHONPATH": python_path(),
        "PYTHONSAFEPATH": "1",  # a folder `flows` where the user works is not ours
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
        "PREFECT_SERVER_API_AUTH_STRING": secret,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{HOST}:{port}",
        HOSTS_VARIABLE: loopback_hosts(port),
    }


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(GRACE_SECONDS + 1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _require_chosen_server() -> None:
    """Ask the server that the user has chosen for its version: it may be away, refuse the login, or be another one."""
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


def serve(parent: int, listener: int) -> None:
    """Serve until the command ends, however that ends.

    Signals do not end it: a terminal's Ctrl-C, `timeout` and a batch system send theirs to every process of a job, and a flow
    that is interrupted has a step to finish and its end to report.

    Args:
        parent: process id of the command, which holds the other end of standard input open.
        listener: a socket that listens.
    """
    server = uvicorn.Server(uvicorn.Config(FACTORY, factory=True, lifespan="on", log_level="error"))
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # before there is a thread that could take one
    threading.Thread(target=_end_with, args=(parent, server), daemon=True).start()
    os.umask(0o077)  # the database that it may have to make
    server.run(sockets=[socket.socket(fileno=listener)])


def _end_with(parent: int, server: uvicorn.Server) -> None:
    # A fork of the command may hold the pipe open after the command's death: hence the second sign.
    while os.getppid() == parent and not select([sys.stdin], [], [], POLL_SECONDS)[0]:
        pass
    if server.started:  # one that has not has nothing to close
        server.should_exit = True
        time.sleep(GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
