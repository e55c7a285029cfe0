"""The local stack's services and their processes: started, found again by a mark in their environment, looked at, ended."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import httpx
import psutil

from flows.stack import commands
from flows.stack.commands import HOST, POOL, loopback_hosts
from flows.stack.state import REQUEST_SECONDS, Stack, prefect_client
from grpo_core.errors import StackError
from grpo_core.machine.gpus import SLOTS_VARIABLE
from grpo_core.machine.slots import FOLDER_VARIABLE
from grpo_core.training import TRAINING
from tasks.credentials import address_variables
from tasks.deployment_limits import ALLOWED_VARIABLE
from tasks.process.context import FLOW_RUN_VARIABLE, WORKER_VARIABLE

PREFECT, MLFLOW, WORKER = "prefect", "mlflow", "worker"
MARK, SERVICE = "GRPO_STACK", "GRPO_STACK_SERVICE"
"""Environment variables that every process of a stack inherits, whatever becomes of its parents: the folder, the service."""
SEARCHED = 50
"""How many ports from the usual one on are tried."""


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
        **commands.past_proxies(),
        **commands.STACK_VARIABLES,
        **address_variables(stack.mlflow_address),
        "PWD": str(stack.project),  # prefect.yaml asks for it: the folder in which deployments run
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
    more = {SERVICE: service}
    if service == PREFECT:
        command = commands.prefect_server(stack.prefect_port)
        more[commands.HOSTS_VARIABLE] = loopback_hosts(stack.prefect_port)
        more["PREFECT_SERVER_API_AUTH_STRING"] = stack.secret
        more["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = commands.loopback_origins(stack.prefect_port)
    elif service == MLFLOW:
        from tasks.tracking.databases import ensure_store

        database = stack.folder / "mlflow" / "mlflow.db"
        ensure_store(database, artifacts="mlflow-artifacts:/")  # the server would leave half of one if it were killed
        command = commands.mlflow_server(stack.mlflow_port, f"sqlite:///{database}", str(database.with_name("artifacts")))
    else:
        command, more[WORKER_VARIABLE] = commands.worker(worker_name(service)), worker_name(service)
    start_process(command, {**stack_environment(stack), **more}, stack.log_file(service))


def start_process(command: Sequence[str], environment: Mapping[str, str], log_file: Path) -> None:
    """Start a process that outlives this command, in a session of its own, its output appended to a file."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    # A shell's `&` leaves SIGINT ignored, and children inherit that; Prefect's worker stops by sending SIGINT to itself.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with log_file.open("ab") as log:
            ends = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            psutil.Popen(command, **ends, env=dict(environment), start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, before)


def marked_processes(folder: Path) -> dict[psutil.Process, dict[str, str]]:
    """Return the live processes of the stack in a folder, those whose parents have died included, and their environments."""
    mine = {
        process: process.info["environ"] or {}  # None: another user's
        for process in psutil.process_iter(["environ", "status", "cmdline"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
    }
    return {process: variables for process, variables in mine.items() if variables.get(MARK) == str(folder.resolve())}


def service_processes(folder: Path) -> dict[str, list[psutil.Process]]:
    """Return the live processes of each service; those of runs are not among them."""
    found: dict[str, list[psutil.Process]] = {}
    for process, variables in marked_processes(folder).items():
        if FLOW_RUN_VARIABLE not in variables and SERVICE in variables:
            found.setdefault(variables[SERVICE], []).append(process)
    return found


def run_processes(folder: Path) -> list[psutil.Process]:
    """Return the live processes of a stack's runs: they outlive the worker, and a training may outlive its flow's process."""
    return [process for process, variables in marked_processes(folder).items() if FLOW_RUN_VARIABLE in variables]


def trainings(folder: Path) -> list[psutil.Process]:
    """Return those of `run_processes` that train."""
    return [process for process in run_processes(folder) if TRAINING in (process.info["cmdline"] or ())]


def interrupt_runs(folder: Path) -> int:
    """Ask the flows' processes to end as a worker does, where Prefect cannot; each hands it on. Return how many there are."""
    processes = run_processes(folder)
    numbers, first = {process.pid for process in processes}, list[psutil.Process]()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.ppid() not in numbers:
                process.terminate()
                first.append(process)
    return len(first)


def end_processes(processes: Iterable[psutil.Process], patience: float) -> None:
    """End processes: SIGTERM, and SIGKILL to those still there after `patience` seconds."""
    remaining = list(processes)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in remaining:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, remaining = psutil.wait_procs(remaining, timeout=patience)


def choose_port(name: str, given: int | None, usual: int) -> int:
    """Return the given port, else the first free one from the usual one on.

    Raises:
        StackError: the given port is busy, or no port is free.
    """
    for port in range(usual, usual + SEARCHED) if given is None else [given]:
        # As servers do it: a port whose last connections are still closing is free.
        with contextlib.suppress(OSError), socket.create_server((HOST, port)):
            return port
    raise StackError(f"--{name}-port {given or usual}: is in use; give another")


def conditions(stack: Stack) -> dict[str, tuple[str, int | None]]:
    """Return the condition of each service, `ready`, `not ready` or `ended`, and the number of its process."""
    alive = service_processes(stack.folder)
    found: dict[str, tuple[str, int | None]] = dict.fromkeys(services(stack), ("ended", None))
    for service in found.keys() & alive.keys():
        condition = "ready" if _is_ready(stack, service, alive[service]) else "not ready"
        found[service] = (condition, min(process.pid for process in alive[service]))
    return found


def _is_ready(stack: Stack, service: str, processes: list[psutil.Process]) -> bool:
    """A server counts only where a process of its own listens: nobody else on its port may be sent secrets or prompts."""
    try:
        if service in (PREFECT, MLFLOW):
            port = stack.prefect_port if service == PREFECT else stack.mlflow_port
            health = f"{stack.api if service == PREFECT else stack.mlflow_address}/health"
            sockets = [one for process in processes for one in process.net_connections(kind="tcp")]
            listens = any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in sockets)
            return listens and httpx.get(health, timeout=REQUEST_SECONDS, trust_env=False).is_success
        with prefect_client(stack) as client:
            known = client.post(f"/work_pools/{POOL}/workers/filter", json={}).raise_for_status().json()
    except (httpx.HTTPError, psutil.Error):
        return False
    return (worker_name(service), "ONLINE") in {(worker["name"], worker["status"]) for worker in known}
