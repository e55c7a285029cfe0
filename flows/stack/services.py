"""What the stack consists of: the command, the environment and the sign of health of each service."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from flows.stack.ports import HOST
from flows.stack.processes import MARK
from flows.stack.state import Stack
from grpo_core.gpu_locks import SLOTS_VARIABLE
from tasks.slots import FOLDER_VARIABLE

POOL = "grpo"
WORKER_NAME = "grpo-local"
HEARTBEAT_SECONDS = 30
REQUEST_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service: how it is started, and how it is known to be ready."""

    name: str
    command: Callable[[Stack], list[str]]
    healthy: Callable[[Stack], bool]


def environment(stack: Stack) -> dict[str, str]:
    """Return the environment of everything that belongs to the stack; what the user has set for other things stays."""
    folder = stack.folder.resolve()
    return {
        **os.environ,
        "PWD": str(Path.cwd()),  # prefect.yaml asks for it: the folder in which deployments run
        MARK: mark(stack),
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": stack.api,
        "PREFECT_UI_URL": stack.prefect_address,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # A lease in memory dies with the server, and whatever holds it.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT_CLIENT_MAX_RETRIES": "10",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "PREFECT_LOGGING_EXTRA_LOGGERS": "grpo_core,tasks",
        "PREFECT_LOGGING_LEVEL": "INFO",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_TRACKING_URI": stack.mlflow_address,
        SLOTS_VARIABLE: str(stack.slots),
        FOLDER_VARIABLE: str(folder / "slots"),
        "PYTHONUNBUFFERED": "1",
    }


def mark(stack: Stack) -> str:
    """Return what its processes are recognised by."""
    return str(stack.folder.resolve())


def _prefect_server(stack: Stack) -> list[str]:
    return [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(stack.prefect_port)]


def _mlflow_server(stack: Stack) -> list[str]:
    folder = stack.folder.resolve() / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(stack.mlflow_port)]
    # More than one worker on SQLite makes every request wait 40 ms.
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    return [*command, "--artifacts-destination", str(folder / "artifacts")]


def _worker(_stack: Stack) -> list[str]:
    return [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", WORKER_NAME]


def _answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=REQUEST_SECONDS).is_success
    except httpx.HTTPError:
        return False


def _worker_is_online(stack: Stack) -> bool:
    try:
        answer = httpx.post(f"{stack.api}/work_pools/{POOL}/workers/filter", json={}, timeout=REQUEST_SECONDS)
        return any(worker["name"] == WORKER_NAME and worker["status"] == "ONLINE" for worker in answer.json())
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False


PREFECT = Service(name="prefect", command=_prefect_server, healthy=lambda stack: _answers(f"{stack.api}/health"))
MLFLOW = Service(name="mlflow", command=_mlflow_server, healthy=lambda stack: _answers(f"{stack.mlflow_address}/health"))
WORKER = Service(name="worker", command=_worker, healthy=_worker_is_online)
SERVICES = (PREFECT, MLFLOW, WORKER)
"""In the order in which they are started; they are ended the other way round."""
