"""The embedded Prefect server of a command: private, started under any load, and gone when the command is gone.

Prefect would start one with the first request: open to everybody on this machine and to every page in a browser, within 20 s or
not at all, and left behind by a command that is killed meanwhile. This one asks for a secret that only this command and its
children know, is bound by the command itself so that nobody else can answer in its place, and watches the command from its
first line on (`embedded_server.py`). The database is the one that Prefect would use, so the history of flow runs stays.
"""

import atexit
import contextlib
import logging
import os
import re
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import prefect.context
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_MEMO_STORE_PATH,
    PREFECT_SERVER_EPHEMERAL_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    PREFECT_SERVER_LOGGING_LEVEL,
    get_current_settings,
)

from flows.stack.chosen_prefect import require_chosen_server
from flows.stack.embedded_database import Condition, damaged, database_file, examine, migration_lock
from flows.stack.embedded_server import GRACE_SECONDS, MODULE
from flows.stack.prefect_app import HOSTS_VARIABLE, loopback_hosts
from flows.stack.processes import HOST, past_proxies
from grpo_core.errors import StackError
from grpo_core.redaction import redact_uri
from grpo_core.run.child import python_path
from tasks.process.context import EMBEDDED_VARIABLE

logger = logging.getLogger(__name__)

ATTEMPTS = 2
START_SECONDS = 300.0
"""How long a server that lives may take to start; Prefect's own setting counts where it is longer."""
NOTICE_SECONDS = 15.0
POLL_SECONDS = 0.2
SHOWN_LINES = 12
TAIL_BYTES = 50_000
SIGNS_OF_DAMAGE = (
    "malformed",
    "is not a database",
    "already exists",
    "duplicate column name",
    "no such table",
    "no such column",
)
"""What SQLite reports of a database that another start will not mend."""
CONTROLS = re.compile(r"\x1b\[[0-9;]*m|[^\n\t -~\u00a0-\uffff]")
EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")
_held: list[int] = []
"""Write ends of lifelines: open as long as this process is."""


@dataclass(frozen=True, kw_only=True)
class _Started:
    """A server that answers."""

    process: subprocess.Popen[bytes]
    lifeline: int
    port: int
    secret: str


class _DiedError(Exception):
    """A server ended during its start; the message is what it wrote."""


def start_embedded_server(show: Callable[[str], None] = lambda line: logger.warning("%s", line)) -> None:
    """Start the server that Prefect would start with the first request, if it would; return once it answers.

    From then on `PREFECT_API_URL` and `PREFECT_API_AUTH_STRING` are set, for this process and for those that it starts.

    Args:
        show: prints a line about a start that takes long or is repeated.

    Raises:
        StackError: it does not start, its database is damaged, or the server that the user has chosen cannot be used.
    """
    if PREFECT_API_URL.value() or not PREFECT_SERVER_EPHEMERAL_ENABLED.value():
        require_chosen_server()
        return
    started = _start(show)
    atexit.register(_end, started)
    address = f"http://{HOST}:{started.port}/api"
    os.environ.update(
        past_proxies(os.environ),
        PREFECT_API_URL=address,
        PREFECT_API_AUTH_STRING=started.secret,
        **{EMBEDDED_VARIABLE: address},
    )
    prefect.context.refresh_global_settings_context()


def _start(show: Callable[[str], None]) -> _Started:
    file = database_file()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _prepared(file, show) as (lock, variables):
                return _start_once(show, lock, variables)
        except _DiedError as error:
            output = str(error)
            if file is not None and (sign := sign_of_damage(output)):
                raise StackError(damaged(file, sign)) from None
            if attempt == ATTEMPTS:
                raise StackError(failure(f"ended {ATTEMPTS} times during its start", output)) from None
            show(f"Prefect ended during its start; starting it again ({attempt + 1} of {ATTEMPTS})")
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _prepared(file: Path | None, show: Callable[[str], None]) -> Iterator[tuple[int | None, dict[str, str]]]:
    """Yield the database's lock, held while inside if a server has to make or migrate it, and variables for that server."""
    if file is not None and examine(file) is not Condition.CURRENT:
        with migration_lock(file, show) as lock:
            condition = examine(file)  # another command's server may have done it meanwhile
            if condition is not Condition.CURRENT:
                # In a new database Prefect must register its blocks, although its memo store may say that it has before.
                is_stale = condition is Condition.MISSING and PREFECT_MEMO_STORE_PATH.value().exists()
                yield lock, {"PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "0"} if is_stale else {}
                return
    yield None, {}


def _start_once(show: Callable[[str], None], lock: int | None, variables: dict[str, str]) -> _Started:
    secret = f"grpo:{secrets.token_urlsafe(32)}"
    lifeline, held = os.pipe()
    ready, write_ready = os.pipe()
    _held.append(held)
    with contextlib.ExitStack() as failed, contextlib.ExitStack() as opened:
        failed.callback(_release, held)
        opened.callback(os.close, ready)
        log = opened.enter_context(tempfile.TemporaryFile())  # readable through this descriptor alone
        try:
            with socket.create_server((HOST, 0)) as listener:  # the server's own stays open: once dead, it refuses connections
                port = listener.getsockname()[1]
                passed = (listener.fileno(), lifeline, write_ready, *(() if lock is None else (lock,)))
                process = _spawn(passed, {**_environment(port, secret), **variables}, log)
        finally:
            os.close(lifeline)
            os.close(write_ready)
        failed.callback(_kill, process)
        _wait(process, ready, lambda: written(log, secret), show)
        failed.pop_all()
    return _Started(process=process, lifeline=held, port=port, secret=secret)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _spawn(passed: tuple[int, ...], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    is_shown = PREFECT_SERVER_LOGGING_LEVEL.value() != "CRITICAL"  # --debug
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, *map(str, passed)],
        stdin=subprocess.DEVNULL,
        stdout=None if is_shown else log,
        stderr=None if is_shown else subprocess.STDOUT,
        env={**environment, **({} if is_shown else {"PREFECT_SERVER_LOGGING_LEVEL": "ERROR"})},
        pass_fds=passed,
        start_new_session=True,  # away from what a terminal or `timeout` sends to the command's group
    )


def _environment(port: int, secret: str) -> dict[str, str]:
    return {
        **os.environ,
        **get_current_settings().to_environment_variables(exclude_unset=True),
        "PYTHONPATH": python_path(),
        "PYTHONSAFEPATH": "1",  # a folder `flows` where the user works is not ours
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
        "PREFECT_SERVER_API_AUTH_STRING": secret,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{HOST}:{port}",
        HOSTS_VARIABLE: loopback_hosts(port),
    }


def _wait(process: subprocess.Popen[bytes], ready: int, output: Callable[[], str], show: Callable[[str], None]) -> None:
    """Return once the server answers: it writes a byte then.

    Raises:
        _DiedError: it has ended.
        StackError: it still lives, and has not answered for too long.
    """
    patience = max(START_SECONDS, float(PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()))
    started, notice = time.monotonic(), NOTICE_SECONDS
    while not select.select([ready], [], [], POLL_SECONDS)[0]:
        waited = time.monotonic() - started
        if waited > patience:
            raise StackError(failure(f"has not answered for {waited:.0f} s (load average {_load()})", output()))
        if waited > notice:
            show(f"Prefect is still starting after {waited:.0f} s (load average {_load()} on {os.cpu_count()} processors)")
            notice *= 2
    if not os.read(ready, 1):
        process.wait()
        raise _DiedError(output().strip() or f"(none; exit code {process.returncode})")


def _end(started: _Started) -> None:
    """End the server; in a fork of the process that has started it, do nothing."""
    if started.lifeline not in _held:
        return
    _release(started.lifeline)
    try:
        started.process.wait(GRACE_SECONDS + 1)
    except subprocess.TimeoutExpired:
        _kill(started.process)


def _release(lifeline: int) -> None:
    _held.remove(lifeline)
    os.close(lifeline)


def _release_all() -> None:
    for lifeline in tuple(_held):
        _release(lifeline)


os.register_at_fork(after_in_child=_release_all)  # a fork that outlives the command must not keep its server alive


def _load() -> str:
    return f"{os.getloadavg()[0]:.0f}"


def written(log: IO[bytes], secret: str) -> str:
    """Return the end of what a server wrote, without its secret, passwords in addresses and terminal escapes."""
    start = max(0, os.fstat(log.fileno()).st_size - TAIL_BYTES)
    text = os.pread(log.fileno(), TAIL_BYTES, start).decode(errors="replace").replace(secret, "***")
    return CONTROLS.sub("", redact_uri(text)).strip()


def failure(what: str, output: str) -> str:
    """Return the message for a server that did not start, with its last lines.

    Before them stands the last exception's: an SQL statement of any length may follow it.
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines[:-SHOWN_LINES] if EXCEPTION.match(line)]
    last = "\n".join([*causes[-1:], *lines[-SHOWN_LINES:]])
    text = f"; its last output:\n{last}\n" if output else ". "
    return (
        f"the embedded Prefect server {what}{text}"
        f"Start the command again (at a high load, later); or start a server once with `grpo up`, which commands in this "
        f"folder then use; or set PREFECT_API_URL to a server of yours; or give it another database with PREFECT_HOME. "
        f"--debug shows all of its output"
    )


def sign_of_damage(output: str) -> str:
    """Return the line in which SQLite calls the database damaged or half migrated, empty if there is none."""
    lines = [
        line.strip() for line in output.splitlines() if "sqlite3." in line and any(sign in line for sign in SIGNS_OF_DAMAGE)
    ]
    return lines[-1] if lines else ""
