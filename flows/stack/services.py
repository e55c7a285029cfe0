"""What the local stack consists of: the command, the environment and the sign of health of each service."""

import os
from pathlib import Path

import httpx
import psutil

from flows.stack import commands
from flows.stack.commands import HOSTS_VARIABLE, POOL, STACK_VARIABLES, loopback_hosts, loopback_origins, past_proxies
from flows.stack.processes import MARK, SERVICE, listens, service_processes, start_process
from flows.stack.state import REQUEST_SECONDS, Stack, prefect_client
from grpo_core.machine.gpus import FOLDER_VARIABLE, SLOTS_VARIABLE
from tasks.credentials import address_variables
from tasks.deployment_limits import ALLOWED_VARIABLE
from tasks.process.context import WORKER_VARIABLE

PREFECT, MLFLOW, WORKER = "prefect", "mlflow", "worker"


def workers(stack: Stack) -> list[str]:
    """Return the services that take runs: `worker`, or with several of them `worker-1`, `worker-2`, ..."""
    return [WORKER] if stack.workers == 1 else [f"{WORKER}-{number}" for number in range(1, stack.workers + 1)]


def services(stack: Stack) -> list[str]:
    """Return the names of all services, in the order in which they are started; they are ended the other way round."""
    return [PREFECT, MLFLOW, *workers(stack)]


def worker_name(service: str) -> str:
    """Return the name that Prefect shows of a worker: `grpo-local`, `grpo-local-1`, ..."""
    return service.replace(WORKER, "grpo-local")


def stack_environment(stack: Stack) -> dict[str, str]:
    """Return the environment of everything that belongs to the stack; what the user has set for other things stays."""
    return {
        **os.environ,
        **past_proxies(),
        **STACK_VARIABLES,
        **address_variables(stack.mlflow_address),
        "PWD": str(Path.cwd()),  # prefect.yaml asks for it: the folder in which deployments run
        MARK: str(stack.folder),
        "PREFECT_API_URL": stack.api,
        "PREFECT_API_AUTH_STRING": stack.secret,
        "PREFECT_HOME": str(stack.folder / "prefect"),
        "PREFECT_UI_URL": stack.prefect_address,
        # A lease in memory dies with the server, and whatever holds it.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        SLOTS_VARIABLE: str(stack.slots),
        FOLDER_VARIABLE: str(stack.folder / "slots"),
        ALLOWED_VARIABLE: ",".join(stack.allow_reward),
    }


def start_service(stack: Stack, service: str) -> None:
    """Start a service."""
    if service == PREFECT:
        command = commands.prefect_server(stack.prefect_port)
        more = {
            HOSTS_VARIABLE: loopback_hosts(stack.prefect_port),
            "PREFECT_SERVER_API_AUTH_STRING": stack.secret,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": loopback_origins(stack.prefect_port),
        }
    elif service == MLFLOW:
        command, more = _mlflow_command(stack), {}
    else:
        command, more = commands.worker(worker_name(service)), {WORKER_VARIABLE: worker_name(service)}
    start_process(command, {**stack_environment(stack), SERVICE: service, **more}, stack.log_file(service))


def _mlflow_command(stack: Stack) -> list[str]:
    from tasks.tracking.databases import ensure_store

    database = stack.folder / "mlflow" / "mlflow.db"
    ensure_store(database, artifacts="mlflow-artifacts:/")  # the server would leave half of one if it were killed
    return commands.mlflow_server(stack.mlflow_port, f"sqlite:///{database}", str(stack.folder / "mlflow" / "artifacts"))


def conditions(stack: Stack) -> dict[str, tuple[str, int | None]]:
    """Return the condition of each service, `ready`, `not ready` or `ended`, and the number of its process."""
    alive = service_processes(stack.folder)
    found: dict[str, tuple[str, int | None]] = {}
    for service in services(stack):
        processes = alive.get(service)
        if not processes:
            found[service] = ("ended", None)
        else:
            condition = "ready" if _is_ready(stack, service, processes) else "not ready"
            found[service] = (condition, min(process.pid for process in processes))
    return found


def _is_ready(stack: Stack, service: str, processes: list[psutil.Process]) -> bool:
    """Return whether a service works.

    A server counts only where a process of its own listens: nobody else who has taken its port may be sent secrets or prompts.
    """
    try:
        if service == PREFECT:
            return listens(processes, stack.prefect_port) and _get(f"{stack.api}/health").is_success
        if service == MLFLOW:
            return listens(processes, stack.mlflow_port) and _get(f"{stack.mlflow_address}/health").is_success
        with prefect_client(stack) as client:
            known = client.post(f"/work_pools/{POOL}/workers/filter", json={}).raise_for_status().json()
    except httpx.HTTPError:
        return False
    return (worker_name(service), "ONLINE") in {(worker["name"], worker["status"]) for worker in known}


def _get(address: str) -> httpx.Response:
    return httpx.get(address, timeout=REQUEST_SECONDS, trust_env=False)
