"""What containers of docker-compose.yml do before, beside or instead of a program: `python -m flows.stack.cluster ROLE`."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from tenacity import Retrying, stop_after_delay, wait_fixed

from flows.stack import prefect_api
from flows.stack.commands import POOL, authorization
from tasks.process.context import WORKER_VARIABLE

SILENT_SECONDS = 60.0
"""Prefect's services report every few seconds."""
BUCKET = "mlflow"
WORKER = "worker"
"""As whom workers log in to MLflow."""


def await_prefect() -> None:
    """Wait until Prefect's server has made its tables: its background services do not recover from a start without them."""
    with _client_after("/health"):
        pass


def set_up() -> None:
    """Make pool, queues, deployments and automations."""
    with _client_after("/health") as client:
        prefect_api.set_up(client, None, {**os.environ, "PWD": str(Path.cwd())})


def crash_lost_runs() -> None:
    """Wait for the pool, and call those runs crashed that this worker had taken before: the end of its container ended them.

    Runs of other workers stay as they are, dead or alive: their processes are on another host, and nothing here can tell.
    """
    name = os.environ[WORKER_VARIABLE]
    with _client_after(f"/work_pools/{POOL}") as client:
        why = f"its worker {name} was started again, and its process is gone"
        prefect_api.crash_runs(client, lambda run: run.get("labels", {}).get(prefect_api.WORKER_LABEL) == name, why)


def check_services() -> None:
    """End with an error where Prefect's services have not written into Redis for a minute that they are alive."""
    from redis import Redis

    with Redis.from_url(os.environ["PREFECT_SERVER_DOCKET_URL"], socket_timeout=4) as redis:
        newest = redis.zrange("prefect:workers", -1, -1, withscores=True)
    if not newest or time.time() - newest[0][1] > SILENT_SECONDS:
        sys.exit("Prefect's services are silent")


def prepare_mlflow() -> None:
    """Make the bucket of the artifacts, and the user as whom workers log in."""
    from tasks.tracking.databases import ensure_user, users_database

    _make_bucket()
    ensure_user(users_database(), WORKER, os.environ["MLFLOW_WORKER_PASSWORD"])


def _make_bucket() -> None:
    import boto3
    from botocore.exceptions import ClientError

    store = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
    try:
        store.head_bucket(Bucket=BUCKET)
    except ClientError:
        store.create_bucket(Bucket=BUCKET)


def upgrade_mlflow() -> None:
    """Bring MLflow's two databases to the version that is installed; the server must not run meanwhile."""
    from tasks.tracking.databases import upgrade_schema, users_database

    upgrade_schema(os.environ["MLFLOW_BACKEND_STORE_URI"], users_database())


ROLES = {
    "await-prefect": await_prefect,
    "set-up": set_up,
    "crash-lost-runs": crash_lost_runs,
    "check-services": check_services,
    "prepare-mlflow": prepare_mlflow,
    "upgrade-mlflow": upgrade_mlflow,
}


@contextlib.contextmanager
def _client_after(path: str) -> Iterator[httpx.Client]:
    """Yield a client of Prefect once it has an answer: podman may start a container before what it depends on."""
    headers = authorization(os.environ["PREFECT_API_AUTH_STRING"])
    with httpx.Client(base_url=os.environ["PREFECT_API_URL"], headers=headers, timeout=30, trust_env=False) as client:
        Retrying(stop=stop_after_delay(600), wait=wait_fixed(2), reraise=True)(lambda: client.get(path).raise_for_status())
        yield client


if __name__ == "__main__":
    ROLES[sys.argv[1]]()
