"""The process of a vLLM server: on loopback, with a key, in a process group that ends with its owner."""

import contextlib
import json
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
from grpo_core.generation.vllm.waiting import reported
from grpo_core.machine.disk import append_private
from grpo_core.machine.hardware import needed_variables
from grpo_core.machine.process_id import ProcessId, identify

logger = logging.getLogger(__name__)

PYTHON_VARIABLE, OWNER_VARIABLE = "GRPO_VLLM_PYTHON", "GRPO_VLLM_OWNER"
ENVIRONMENT = Path(".venv-vllm/bin/python")
"""What `make vllm` makes, in the current folder."""
START_SECONDS, POLL_SECONDS = 600.0, 0.5
"""A start takes 20 s to several minutes."""
PORT_TAKEN = "ddress already in use"
TAIL_LINES = 8
GIB = 2**30
HEAD_IN_FLOAT32 = {"head_dtype": "float32"}
"""vLLM's setting for logits in float32, as the trainer's are: a bfloat16 logit near 20 is off by up to 0.06."""
FOR_OTHERS = ("PYTHON", "GRPO_", "PREFECT_", "MLFLOW_", "GLIBC_TUNABLES")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a server is started with."""

    python: Path
    model: Path
    dtype: str
    context: int
    """Tokens of the longest prompt and completion together."""
    threads: int
    kv_cache_gib: int
    log_file: Path


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


def command(settings: ServerSettings, port: int, *, host: str = "127.0.0.1") -> list[str]:
    """Return the command line of a server that can be a sampler; loopback alone reaches it unless `host` says otherwise."""
    options = {
        "--model": settings.model,
        "--served-model-name": "policy",
        "--host": host,
        "--port": port,
        "--dtype": settings.dtype,
        "--max-model-len": settings.context,
        "--logprobs-mode": "processed_logprobs",  # with the temperature, as the trainer's
        "--generation-config": "vllm",  # no sampling settings from the model's folder
        # A prompt that is cut into chunks consumes random numbers of seeded requests otherwise, and ends the engine on a CPU.
        "--max-num-batched-tokens": max(8192, settings.context),
        "--kv-cache-memory-bytes": settings.kv_cache_gib * GIB,
        "--gpu-memory-utilization": 0.01,  # what remains of it is a check at the start, when the trainer has its part
        "--middleware": "grpo_vllm.guard.RequireKey",
        "--hf-overrides": json.dumps(HEAD_IN_FLOAT32),
        "--weight-transfer-config": '{"backend": "grpo_file"}',
    }
    flags = ("--enforce-eager", "--no-enable-chunked-prefill")
    pairs = [str(part) for pair in options.items() for part in pair]
    return [str(settings.python), "-m", "vllm.entrypoints.openai.api_server", *pairs, *flags]


def environment(settings: ServerSettings, key: str) -> dict[str, str]:
    """Return the environment of a server: this process's, without what is meant for others, among it their passwords."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOR_OTHERS)}
    return {
        **kept,
        **process_variables(),
        "GRPO_VLLM_KEY": key,
        "VLLM_SERVER_DEV_MODE": "1",  # the routes of the weight transfer
        "OMP_NUM_THREADS": str(settings.threads),
        "HF_HUB_OFFLINE": "1",
    }


def process_variables() -> dict[str, str]:
    """Return the environment variables of every process with vLLM, here or in a server."""
    hardware = needed_variables()
    return {
        **hardware,
        **({"GRPO_VLLM_WITHOUT_AMX": "1"} if hardware else {}),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


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
