"""What the stack consists of: the command, the environment and the sign of health of each service."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from flows.stack import commands
from flows.stack.commands import POOL, STACK_VARIABLES, client_variables
from flows.stack.prefect_app import loopback_hosts
from flows.stack.processes import HOST, MARK, family, listens, past_proxies
from flows.stack.state import REQUEST_SECONDS, Stack, prefect_client, read_secret, secret_file
from grpo_core.generation.vllm.records import KEEP_VARIABLE, keeper_in
from grpo_core.generation.vllm.server import PYTHON_VARIABLE
from grpo_core.machine.gpus import SLOTS_VARIABLE
from grpo_core.machine.slots import FOLDER_VARIABLE
from tasks.credentials import address_variables
from tasks.process.context import WORKER_VARIABLE
from tasks.rails import ALLOWED_VARIABLE


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service: how it is started, and how it is known to be ready."""

    name: str
    command: Callable[[Stack], list[str]]
    healthy: Callable[[Stack], bool]
    variables: Callable[[Stack], Mapping[str, str]] = lambda _stack: {}
    """Of its own, beside the environment of the stack."""


def stack_environment(stack: Stack) -> dict[str, str]:
    """Return the environment of everything that belongs to the stack; what the user has set for other things stays."""
    folder = stack.folder.resolve()
    return {
        **os.environ,
        **past_proxies(os.environ),
        "PWD": str(Path.cwd()),  # prefect.yaml asks for it: the folder in which deployments run
        MARK: mark(stack),
        **STACK_VARIABLES,
        **client_variables(stack.api, read_secret(stack.folder) or "", stack.mlflow_address),
        **address_variables(stack.mlflow_address),
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_UI_URL": stack.prefect_address,
        # A lease in memory dies with the server, and whatever holds it.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        SLOTS_VARIABLE: str(stack.slots),
        FOLDER_VARIABLE: str(folder / "slots"),
        ALLOWED_VARIABLE: ",".join(stack.allow_reward),
    }


def mark(stack: Stack) -> str:
    """Return what its processes are recognised by."""
    return str(stack.folder.resolve())


def _prefect_server(stack: Stack) -> list[str]:
    return commands.prefect_server(HOST, stack.prefect_port)


def _prefect_server_variables(stack: Stack) -> dict[str, str]:
    hosts = loopback_hosts(stack.prefect_port).split(",")
    remedy = (
        f"run the command in {stack.project}, or set PREFECT_API_AUTH_STRING to what "
        f"{secret_file(stack.folder.resolve())} holds"
    )
    return commands.prefect_server_variables(hosts, hosts, read_secret(stack.folder) or "", remedy)


def _mlflow_server(stack: Stack) -> list[str]:
    from tasks.tracking.local_store import ensure_store

    folder = stack.folder.resolve() / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    ensure_store(folder / "mlflow.db", artifacts="mlflow-artifacts:/")  # the server would leave half of one if it were killed
    hosts = loopback_hosts(stack.mlflow_port).split(",")
    stores = {"--backend-store-uri": f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination": str(folder / "artifacts")}
    return commands.mlflow_server(HOST, stack.mlflow_port, hosts, hosts, stores)


def _answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=REQUEST_SECONDS, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _worker_is_online(stack: Stack, name: str) -> bool:
    try:
        with prefect_client(stack) as client:
            answer = client.post(f"/work_pools/{POOL}/workers/filter", json={})
        return any(worker["name"] == name and worker["status"] == "ONLINE" for worker in answer.json())
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False


@dataclass(frozen=True, kw_only=True)
class Worker(Service):
    """A process that takes runs of both queues, under a name that Prefect shows."""

    worker_name: str


def _worker(service_name: str, worker_name: str) -> Worker:
    command = commands.worker(worker_name)
    return Worker(
        name=service_name,
        worker_name=worker_name,
        command=lambda _stack: command,
        healthy=lambda stack: _worker_is_online(stack, worker_name),
        variables=lambda stack: {WORKER_VARIABLE: worker_name, **_vllm_variables(stack)},
    )


def _vllm_variables(stack: Stack) -> dict[str, str]:
    """Return what a run has to know to take a vLLM server of the stack, and to leave it there."""
    return {KEEP_VARIABLE: str(stack.vllm_folder), PYTHON_VARIABLE: stack.vllm} if stack.vllm else {}


def _is_ours(stack: Stack, name: str, port: int, address: str) -> bool:
    """Return whether a process of this service answers: nobody else who has taken its port may be sent secrets or prompts."""
    process = stack.processes.get(name)
    members = family(process) if process is not None else []  # MLflow's server is a child
    return any(listens(member.pid, port) for member in members) and _answers(address)


PREFECT = Service(
    name="prefect",
    command=_prefect_server,
    healthy=lambda stack: _is_ours(stack, "prefect", stack.prefect_port, f"{stack.api}/health"),
    variables=_prefect_server_variables,
)
MLFLOW = Service(
    name="mlflow",
    command=_mlflow_server,
    healthy=lambda stack: _is_ours(stack, "mlflow", stack.mlflow_port, f"{stack.mlflow_address}/health"),
)
VLLM_KEEPER = Service(
    name="vllm",
    command=lambda stack: [sys.executable, "-m", "grpo_core.generation.vllm.keeper", str(stack.vllm_folder)],
    healthy=lambda stack: keeper_in(stack.vllm_folder) == stack.processes.get("vllm"),
)


def servers(stack: Stack) -> tuple[Service, ...]:
    """Return what runs need, in the order in which it is started."""
    return (PREFECT, MLFLOW, VLLM_KEEPER) if stack.vllm else (PREFECT, MLFLOW)


def workers(stack: Stack) -> tuple[Worker, ...]:
    """Return the workers of a stack: `grpo-local`, or with several of them `grpo-local-1`, `grpo-local-2`, ..."""
    numbers = [""] if stack.workers == 1 else [f"-{number}" for number in range(1, stack.workers + 1)]
    return tuple(_worker(f"worker{number}", f"grpo-local{number}") for number in numbers)


def services(stack: Stack) -> tuple[Service, ...]:
    """Return what a stack consists of, in the order in which it is started; it is ended the other way round."""
    return (*servers(stack), *workers(stack))
