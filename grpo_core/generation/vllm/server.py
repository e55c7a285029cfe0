"""The process of a vLLM server: on loopback, with a key, in a process group that ends with its owner."""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpo_core.errors import SamplerError, ServerGoneError
from grpo_core.generation.vllm.client import VllmClient
from grpo_core.generation.vllm.launch import ServerSettings, command, environment
from grpo_core.generation.vllm.waiting import reported
from grpo_core.machine.disk import append_private
from grpo_core.machine.process_id import ProcessId, identify

logger = logging.getLogger(__name__)

PYTHON_VARIABLE, OWNER_VARIABLE = "GRPO_VLLM_PYTHON", "GRPO_VLLM_OWNER"
ENVIRONMENT = Path(".venv-vllm/bin/python")
"""What `make vllm` makes, in the current folder."""
START_SECONDS, POLL_SECONDS = 600.0, 0.5
"""A start takes 20 s to several minutes."""
PORT_TAKEN = "ddress already in use"
TAIL_LINES = 8


@dataclass(frozen=True, kw_only=True)
class LaunchedServer:
    """A server that has a process; whether it answers yet is another matter."""

    port: int
    key: str = field(repr=False)
    process: ProcessId
    """The leader of its process group."""

    def client(self, connections: int) -> VllmClient:
        """Return a client of it with so many requests at a time."""
        return VllmClient(f"http://127.0.0.1:{self.port}", self.key, connections)


class VllmServer:
    """A server process that is started, awaited and ended here."""

    def __init__(self, settings: ServerSettings, connections: int, owner: ProcessId | None = None) -> None:
        """Prepare to start.

        Args:
            settings: what the server is started with.
            connections: requests at a time.
            owner: the process with which the server ends, however that one ends; None = this one.
        """
        self._settings, self._connections, self._owner = settings, connections, owner
        self._process: subprocess.Popen[bytes] | None = None
        self._launched: LaunchedServer | None = None

    def start(self) -> VllmClient:
        """Start the server and return once it answers.

        Raises:
            SamplerError: its process ended, or it did not answer in time; the message quotes the log.
        """
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> LaunchedServer:
        """Start the server's process; one that was started here before is ended."""
        self.stop()
        port, key, settings = _free_port(), secrets.token_urlsafe(32), self._settings
        owner = self._owner or identify(os.getpid())
        with append_private(settings.log_file) as log:
            self._process = subprocess.Popen(
                command(settings, port),
                env={**environment(settings, key), OWNER_VARIABLE: f"{owner.pid}:{owner.started}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._launched = LaunchedServer(port=port, key=key, process=identify(self._process.pid))
        return self._launched

    def wait_until_ready(self) -> VllmClient:
        """Return a client once the server that was launched answers.

        Raises:
            SamplerError: its process ended, or it did not answer in time; the message quotes the log.
        """
        assert self._process is not None
        assert self._launched is not None
        client, settings = self._launched.client(self._connections), self._settings
        began = time.monotonic()
        with reported(lambda: f"the vLLM server is starting (its log: {settings.log_file})"):
            while not client.is_ready():
                if self._process.poll() is not None:
                    end = self._log_end()
                    kind = ServerGoneError if PORT_TAKEN in end else SamplerError  # another start takes another port
                    raise kind(f"the vLLM server ended with {self._process.returncode} while it started; {end}")
                if time.monotonic() - began > START_SECONDS:
                    self.stop()
                    raise SamplerError(f"the vLLM server did not answer within {START_SECONDS:.0f} s; {self._log_end()}")
                time.sleep(POLL_SECONDS)
        logger.info("the vLLM server was started in %.0f s", time.monotonic() - began)
        return client

    def stop(self) -> None:
        """End the server and every process of its group, at once: nothing in it needs saving."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _log_end(self) -> str:
        lines = self._settings.log_file.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return f"its log, {self._settings.log_file}, ends with: {' | '.join(lines)}"


def find_python(named: str | None) -> Path:
    """Return the interpreter of the environment that has vLLM.

    Args:
        named: `rollout.vllm.python`.

    Raises:
        SamplerError: there is none, or it lacks vLLM or the plugin.
    """
    python = Path(named or os.environ.get(PYTHON_VARIABLE) or ENVIRONMENT)
    if not python.is_file():
        raise SamplerError(
            f"rollout.vllm.python: {python} is not there; `make vllm` makes an environment, or name the interpreter "
            f"of one, here or in {PYTHON_VARIABLE}"
        )
    require_modules("rollout.vllm.python", python, ("vllm", "grpo_vllm"), "`make vllm`")
    return python


def require_modules(key: str, python: Path, modules: Sequence[str], command: str) -> None:
    """Refuse an interpreter that cannot import something.

    Args:
        key: of the configuration, that names it.
        python: the interpreter.
        modules: what it must have.
        command: what makes an environment that has all of it.

    Raises:
        SamplerError: names what it lacks.
    """
    lacks = [name for name in modules if not _has(python, name)]
    if lacks:
        plugin = Path(__file__).parent / "plugin"
        raise SamplerError(
            f"{key}: {python} has no {' and no '.join(lacks)}; {command}, or for the plugin alone: "
            f"{python} -m pip install --no-deps {plugin}"
        )


def _has(python: Path, module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
