"""Names and variables of Prefect's and MLflow's servers and workers, and their command lines.

docker-compose.yml has the same commands and variables; tests/contracts/test_compose.py compares them.
"""

import base64
import os
import sys

HOST = "127.0.0.1"
POOL = "grpo"
RUNS_QUEUE, SWEEPS_QUEUE = "default", "sweeps"
"""Work queues of the pool. The first has the limit; a sweep, which waits for runs of the first, would hold a place there."""
FACTORY = "flows.stack.prefect_app:create_app"
"""What uvicorn starts: `uvicorn --factory flows.stack.prefect_app:create_app`."""
HOSTS_VARIABLE = "GRPO_PREFECT_HOSTS"
"""Environment variable of Prefect's server: `host:port` of each address that it answers to, separated by commas."""
HEARTBEAT_SECONDS = 30
STACK_VARIABLES = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLIENT_MAX_RETRIES": "10",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    "PREFECT_LOGGING_EXTRA_LOGGERS": "grpo_core,tasks",
    "PREFECT_LOGGING_LEVEL": "INFO",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "PREFECT__SERVER_FINAL": "1",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PYTHONUNBUFFERED": "1",
}
"""Of everything that belongs to a stack."""


def loopback_hosts(port: int) -> str:
    """Return the names of a server that listens on a port of this machine alone, separated by commas."""
    return f"{HOST}:{port},localhost:{port}"


def loopback_origins(port: int) -> str:
    """Return the addresses of its pages, separated by commas."""
    return ",".join(f"http://{host}" for host in loopback_hosts(port).split(","))


def past_proxies() -> dict[str, str]:
    """Return the variables that keep requests to this machine, and the secret in them, away from the user's proxy."""
    return {name: ",".join(filter(None, [os.environ.get(name), HOST])) for name in ("NO_PROXY", "no_proxy")}


def authorization(secret: str) -> dict[str, str]:
    """Return the header by which Prefect lets a client in."""
    return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()}


def prefect_server(port: int) -> list[str]:
    """Start the server as `prefect server start` does it, with a guard in front of the application."""
    place = ["--host", HOST, "--port", str(port)]
    return [sys.executable, "-m", "uvicorn", "--factory", FACTORY, *place, "--log-level", "warning"]


def mlflow_server(port: int, database: str, artifacts: str) -> list[str]:
    """Start the tracking server with MLflow's own guard, whose defaults also answer to the names of private networks."""
    options = {
        "--host": HOST,
        "--port": str(port),
        "--allowed-hosts": loopback_hosts(port),
        "--cors-allowed-origins": loopback_origins(port),
        "--workers": "1",  # more than one on SQLite makes every request wait 40 ms
        "--backend-store-uri": database,
        "--artifacts-destination": artifacts,
    }
    return [sys.executable, "-m", "mlflow", "server", *(word for pair in options.items() for word in pair)]


def worker(name: str) -> list[str]:
    """Start a worker of all queues."""
    return [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", name]
