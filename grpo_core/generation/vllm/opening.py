"""The vLLM that a configuration asks for: whether it can be had, its server, the sampler that uses it. It loads no torch.

Servers are on loopback, with a key, in process groups that end with the process that started them.
"""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.config import RunConfig
from grpo_core.config.derived import longest_row, starts_server
from grpo_core.errors import SamplerError, ServerGoneError
from grpo_core.generation.vllm.client import KEY_VARIABLE, VllmClient, connect
from grpo_core.generation.vllm.launch import ServerSettings, command, environment
from grpo_core.machine.disk import append_private
from grpo_core.types import Prompt

if TYPE_CHECKING:
    from grpo_core.generation.vllm.sampler import VllmSampler
    from grpo_core.policy.policy import Policy

logger = logging.getLogger(__name__)

PYTHON_VARIABLE, OWNER_VARIABLE = "GRPO_VLLM_PYTHON", "GRPO_VLLM_OWNER"
LENT_VARIABLE = "GRPO_VLLM_LENT"
"""Port, process and log of the server that a sweep lends to a run; its key is in `KEY_VARIABLE`."""
ENVIRONMENT = Path(".venv-vllm/bin/python")
"""What `make vllm` makes, in the current folder."""
START_SECONDS, POLL_SECONDS = 600.0, 0.5
PORT_TAKEN = "ddress already in use"
"""A start takes 20 s to several minutes."""


class VllmServer:
    """A server process that is started, awaited and ended here."""

    def __init__(self, settings: ServerSettings, connections: int, variables: Mapping[str, str] | None = None) -> None:
        """Prepare to start.

        Args:
            settings: what the server is started with.
            connections: requests at a time.
            variables: more environment variables of the server, such as its GPU's.
        """
        self.settings, self.variables, self._connections = settings, dict(variables or {}), connections
        self._process: subprocess.Popen[bytes] | None = None
        self._port, self._key = 0, ""

    def start(self) -> VllmClient:
        """Start the server and return once it answers; one that was started here before is ended.

        Raises:
            SamplerError: its process ended, or it did not answer in time; the message quotes the log.
        """
        self.launch()
        client = VllmClient(f"http://127.0.0.1:{self._port}", self._key, self._connections)
        wait_until_ready(client, lambda: self.is_running, self.settings.log_file)
        return client

    def launch(self) -> None:
        """Start the server's process; one that was started here before is ended."""
        self.stop()
        self._port, self._key = _free_port(), secrets.token_urlsafe(32)
        started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]  # a number is used again
        own = {**self.variables, OWNER_VARIABLE: f"{os.getpid()}:{started}"}
        with append_private(self.settings.log_file) as log:
            self._process = subprocess.Popen(
                command(self.settings, self._port),
                env={**environment(self.settings, self._key), **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the first of its processes runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the server and every process of its group, at once: nothing in it needs saving."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def lent(self) -> dict[str, str]:
        """Return the environment variables with which a run finds the server."""
        assert self._process is not None
        return {LENT_VARIABLE: f"{self._port} {self._process.pid} {self.settings.log_file}", KEY_VARIABLE: self._key}


class SlotServers:
    """The servers of a sweep on this machine, one a run at a time: each run is lent one, and gives it back for the next."""

    def __init__(self) -> None:
        """Start none yet."""
        self._free: list[VllmServer] = []
        self._lent: list[VllmServer] = []

    def lend(self, wanted: ServerSettings, variables: Mapping[str, str]) -> VllmServer:
        """Return a server for a run, which may still be starting; a free one that does not suit gives its place to it.

        Args:
            wanted: what the run needs.
            variables: the environment variables that choose its GPU.
        """
        server = next((server for server in self._free if _suits(server, wanted, variables)), None)
        if server is not None:
            self._free.remove(server)
        else:
            if self._free:
                self._free.pop(0).stop()
            server = VllmServer(wanted, connections=1, variables=variables)
            server.launch()
        self._lent.append(server)
        return server

    def give_back(self, server: VllmServer, *, is_sound: bool) -> None:
        """Take a server back; end it where its run did not come to its end, as nobody knows what state it is in."""
        self._lent.remove(server)
        if is_sound:
            self._free.append(server)
        else:
            server.stop()

    def close(self) -> None:
        """End all."""
        for server in (*self._free, *self._lent):
            server.stop()


def _suits(server: VllmServer, wanted: ServerSettings, variables: Mapping[str, str]) -> bool:
    has = server.settings
    is_same = replace(wanted, context=has.context, log_file=has.log_file) == has and server.variables == variables
    return server.is_running and is_same and has.context >= wanted.context


def lent_client(connections: int) -> VllmClient:
    """Return a client of the server that a sweep has lent to this run, once that answers.

    Raises:
        SamplerError: it ended while it started, or did not answer in time.
    """
    port, process, log_file = os.environ[LENT_VARIABLE].split(" ", 2)
    client = VllmClient(f"http://127.0.0.1:{port}", os.environ[KEY_VARIABLE], connections)
    # The sweep, whose child it is, takes note of its end at once; then there is no such process any more.
    wait_until_ready(client, Path("/proc", process).exists, Path(log_file))
    return client


def wait_until_ready(client: VllmClient, is_running: Callable[[], bool], log_file: Path) -> None:
    """Wait until a server that was started answers.

    Raises:
        SamplerError: its process ended, or it did not answer in time; the message quotes the log.
    """
    began = time.monotonic()
    logger.info("the vLLM server is starting (its log: %s)", log_file)
    while not client.is_ready():
        if not is_running() or time.monotonic() - began > START_SECONDS:
            tail = " | ".join(log_file.read_text(errors="replace").splitlines()[-8:])
            why = f"did not answer within {START_SECONDS:.0f} s" if is_running() else "ended while it started"
            kind = ServerGoneError if PORT_TAKEN in tail else SamplerError  # another start takes another port
            raise kind(f"the vLLM server {why}; its log, {log_file}, ends with: {tail}")
        time.sleep(POLL_SECONDS)
    logger.info("the vLLM server answers after %.0f s", time.monotonic() - began)


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
    require_modules("rollout.vllm.python", python, "`make vllm`")
    return python


def require_modules(key: str, python: Path, command: str) -> None:
    """Refuse an interpreter that cannot import vLLM and the plugin.

    Args:
        key: of the configuration, that names it.
        python: the interpreter.
        command: what makes an environment that has all of it.

    Raises:
        SamplerError: names what it lacks.
    """
    code = "import importlib.util, sys; print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))"
    modules = ("vllm", "grpo_vllm")
    found = subprocess.run([python, "-c", code, *modules], check=False, capture_output=True, text=True)
    lacks = modules if found.returncode else found.stdout.split()
    if lacks:
        raise SamplerError(
            f"{key}: {python} has no {' and no '.join(lacks)}; {command}, or for the plugin alone: "
            f"{python} -m pip install --no-deps {Path(__file__).parent / 'plugin'}"
        )


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def require_sampler(configs: Iterable[RunConfig]) -> None:
    """Refuse configurations whose vLLM cannot be used: no environment that has it, or no server at the address.

    Raises:
        SamplerError: names the key and what is missing.
    """
    wanted = (config for config in configs if config.rollout.engine == "vllm")
    needs = {(config.rollout.vllm, longest_row(config), config.training.python): config for config in wanted}
    for config in needs.values():
        if config.rollout.vllm.mode == "colocate":
            python = Path(config.training.python or sys.executable).expanduser()
            require_modules("training.python", python, "`make vllm ARGS=--trainer` makes one with them")
        elif starts_server(config):
            find_python(config.rollout.vllm.python)
        else:
            connect(config)


def open_vllm_sampler(
    config: RunConfig, policy: "Policy", model: Path, prompts: Sequence[Prompt], folder: Path
) -> "VllmSampler":
    """Return the sampler of a run; nothing is started before its first use.

    Args:
        config: the run's.
        policy: what is trained.
        model: the folder of the initial policy, for a vLLM that is started here.
        prompts: of the training; the first ones are the probe.
        folder: the run's, for the server's log.

    Raises:
        SamplerError: a server is to be started and no environment with vLLM is found; or the model reads images, and that
            environment cannot.
    """
    from grpo_core.generation.vllm.colocated import ColocatedVllm
    from grpo_core.generation.vllm.pictured import require_vision
    from grpo_core.generation.vllm.sampler import VllmSampler

    settings, probe = config.rollout.vllm, [prompt.token_ids for prompt in prompts if not prompt.images]
    if policy.images is not None:
        require_vision("rollout.engine: vllm", _interpreter(config), policy)
    seen = [prompt for prompt in prompts if prompt.images]
    sampler = partial(VllmSampler, pictured=seen, add_special_tokens=not config.data.chat_template, folder=folder)
    if settings.mode == "colocate":
        return sampler(lambda: ColocatedVllm(config, model), policy, probe)
    if not starts_server(config):
        return sampler(lambda: connect(config), policy, probe)
    if LENT_VARIABLE in os.environ:
        return sampler(lambda: _opened(lent_client(settings.in_flight), config), policy, probe)
    server = VllmServer(server_settings(config, model, folder / "vllm.log"), settings.in_flight)
    return sampler(lambda: _opened(server.start(), config), policy, probe, end=server.stop)


def _interpreter(config: RunConfig) -> Path | None:
    """Return the one that vLLM runs in; None = a server that somebody else has started."""
    if config.rollout.vllm.mode == "colocate":
        return Path(sys.executable)
    return find_python(config.rollout.vllm.python) if starts_server(config) else None


def _opened(client: VllmClient, config: RunConfig) -> VllmClient:
    client.open_model(longest_row(config))
    return client


def server_settings(config: RunConfig, model: Path, log_file: Path) -> ServerSettings:
    """Return what the server of a run is started with.

    Args:
        config: the run's.
        model: the folder of its initial policy.
        log_file: the server's.

    Raises:
        SamplerError: no environment with vLLM is found.
    """
    return ServerSettings(
        python=find_python(config.rollout.vllm.python),
        model=model,
        dtype=config.model.dtype,
        context=longest_row(config),
        threads=config.training.threads or len(os.sched_getaffinity(0)),
        kv_cache_gib=config.rollout.vllm.kv_cache_gib,
        log_file=log_file,
    )
