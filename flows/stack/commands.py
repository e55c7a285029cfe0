"""How Prefect, MLflow and a worker are started: one source for `grpo up` (`services`) and for docker-compose.yml (`cluster`).

What differs between the two is an argument here: addresses, secrets, databases. `STACK_VARIABLES` does not differ.
"""

import sys
from collections.abc import Iterable, Mapping

from flows.stack.prefect_app import FACTORY, HOSTS_VARIABLE, REMEDY_VARIABLE

POOL = "grpo"
RUNS_QUEUE, SWEEPS_QUEUE = "default", "sweeps"
"""Work queues of the pool. The first has the limit; a sweep, which waits for runs of the first, would hold a place there."""
HEARTBEAT_SECONDS = 30
STACK_VARIABLES = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLIENT_MAX_RETRIES": "10",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    "PREFECT_LOGGING_EXTRA_LOGGERS": "grpo_core,tasks",
    "PREFECT_LOGGING_LEVEL": "INFO",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PYTHONUNBUFFERED": "1",
}
"""Of everything that belongs to a stack."""


def client_variables(api: str, secret: str, mlflow: str) -> dict[str, str]:
    """Return what a process needs to reach both servers: addresses, and what Prefect asks for."""
    return {"PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": secret, "MLFLOW_TRACKING_URI": mlflow}


def prefect_server(host: str, port: int) -> list[str]:
    """Start the server as `prefect server start` does it, with a guard in front of the application."""
    return _python("uvicorn", "--factory", FACTORY, "--host", host, "--port", str(port), "--log-level", "warning")


def prefect_server_variables(hosts: Iterable[str], origins: Iterable[str], secret: str, remedy: str) -> dict[str, str]:
    """Return the guard's settings and the server's own.

    Args:
        hosts: `host:port` of each address at which the server is reached.
        origins: those of them from which a browser may come.
        secret: what it asks for.
        remedy: what somebody without it should do.
    """
    return {
        HOSTS_VARIABLE: ",".join(hosts),
        REMEDY_VARIABLE: remedy,
        "PREFECT_SERVER_API_AUTH_STRING": secret,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{host}" for host in origins),
        "PREFECT__SERVER_FINAL": "1",
    }


def mlflow_server(host: str, port: int, hosts: Iterable[str], origins: Iterable[str], more: Mapping[str, str]) -> list[str]:
    """Start the tracking server with MLflow's own guard, whose defaults also answer to the names of private networks.

    Args:
        host: on which it listens.
        port: likewise.
        hosts: `host:port` of each address at which it is reached.
        origins: those of them from which a browser may come.
        more: options for its stores.
    """
    options = {
        "--host": host,
        "--port": str(port),
        "--allowed-hosts": ",".join(hosts),
        "--cors-allowed-origins": ",".join(f"http://{host}" for host in origins),
        "--workers": "1",  # more than one on SQLite makes every request wait 40 ms; each has its own cache of logins
        **more,
    }
    return _python("mlflow", "server", *(word for pair in options.items() for word in pair))


def worker(name: str, *, queue: str | None = None, limit: int | None = None) -> list[str]:
    """Start a worker, of one queue or of all, that takes so many runs at a time."""
    queues = ["--work-queue", queue] if queue else []
    limits = ["--limit", str(limit)] if limit else []
    return _python("prefect", "worker", "start", "--pool", POOL, *queues, "--type", "process", *limits, "--name", name)


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]
