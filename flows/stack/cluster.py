"""What a container of docker-compose.yml runs: `python -m flows.stack.cluster ROLE`.

Commands and variables are those of `grpo up` (`commands`); this adds the addresses of the other containers and the secrets,
which are files. It becomes the command that it starts, so that the container's signals reach that.
"""

import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from flows.stack import commands
from flows.stack.commands import RUNS_QUEUE, STACK_VARIABLES, SWEEPS_QUEUE, client_variables
from flows.stack.prefect_app import loopback_hosts
from flows.stack.store import BUCKET, ensure_bucket
from grpo_core.errors import StackError

if TYPE_CHECKING:
    import httpx

SECRETS_VARIABLE, SECRETS = "GRPO_SECRETS", "/run/secrets"
PREFECT_PORT_VARIABLE, MLFLOW_PORT_VARIABLE = "GRPO_PREFECT_PORT", "GRPO_MLFLOW_PORT"
"""Ports at which the machine itself reaches the two servers."""
WORKER_VARIABLE = "GRPO_WORKER"
PREFECT, MLFLOW = "prefect-server:4200", "mlflow-server:5000"
POSTGRES, REDIS, OBJECTS = "postgres:5432", "redis:6379", "s3:7070"
USER, WORKER_USER = "grpo", "worker"
"""MLflow's administrator, who is a person, and the user as whom workers log in."""
AUTH_FILE = Path("/tmp/mlflow-auth.ini")  # of a container, whose only user is ours
PAGES = "/tmp/prefect-pages"  # likewise; Prefect writes them anew at each start
SHORTEST = 16
REQUEST_SECONDS, RETRIES = 30.0, 10
ATTEMPTS, PAUSE_SECONDS = 5, 5.0
EXAMPLES = ("change-me", "changeme", "example", "password", "secret")
"""What a password of an example contains."""
FILES = (
    "postgres_password",
    "prefect_database_password",
    "mlflow_database_password",
    "optuna_database_password",
    "redis_password",
    "s3_secret_key",
    "prefect_auth_string",
    "mlflow_password",
    "mlflow_worker_password",
    "mlflow_session_key",
    "vllm_key",
)
"""Every secret of docker-compose.yml, one a file."""


class ClusterError(Exception):
    """A container cannot start; the message says what to do."""


def secret_of(name: str) -> str:
    """Return a secret.

    Raises:
        ClusterError: there is none, or it is an example's or too short.
    """
    file = Path(os.environ.get(SECRETS_VARIABLE) or SECRETS, name)
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ClusterError(f"{file}: no secret ({error}); run `python3 docker/make_secrets.py` on the host") from error
    if any(word in secret.lower() for word in EXAMPLES):
        raise ClusterError(f"{file}: is an example's; remove it and run `python3 docker/make_secrets.py` on the host")
    if len(secret) < SHORTEST or not (secret.isascii() and secret.isprintable()) or " " in secret:
        needed = f"at least {SHORTEST} printable ones of ASCII, without a space, are needed"
        raise ClusterError(f"{file}: {len(secret)} characters; {needed}")
    return secret


def check_secrets() -> None:
    """Refuse a start with secrets that are missing, an example's, or the same for two purposes."""
    found, problems = {}, []
    for name in FILES:
        try:
            found[name] = secret_of(name)
        except ClusterError as error:
            problems.append(str(error))
    if problems:
        raise ClusterError("\n".join(problems))
    if len(set(found.values())) < len(found):
        raise ClusterError("two secrets are the same; run `python3 docker/make_secrets.py` on the host in an empty folder")


def prefect_variables() -> dict[str, str]:
    """Return what Prefect's server and its background services share: PostgreSQL for state, Redis for events and leases."""
    redis = f"redis://:{quote(secret_of('redis_password'), safe='')}@{REDIS}"
    return {
        "PREFECT_API_DATABASE_CONNECTION_URL": _database("postgresql+asyncpg", "prefect"),
        "PREFECT_MESSAGING_BROKER": "prefect_redis.messaging",
        "PREFECT_MESSAGING_CACHE": "prefect_redis.messaging",
        "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "prefect_redis.ordering",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect_redis.lease_storage",
        "PREFECT_REDIS_MESSAGING_URL": f"{redis}/0",
        "PREFECT_SERVER_DOCKET_URL": f"{redis}/1",
    }


def run_prefect_server() -> None:
    """The API and its pages; what runs by itself is the business of `prefect-services`."""
    ours = loopback_hosts(_port(PREFECT_PORT_VARIABLE, 4200)).split(",")
    remedy = "set PREFECT_API_AUTH_STRING to what secrets/prefect_auth_string holds"
    guard = commands.prefect_server_variables([PREFECT, *ours], ours, secret_of("prefect_auth_string"), remedy)
    # The pages ask the server that they came from, under whichever name and port that was.
    here = {"PREFECT__SERVER_WEBSERVER_ONLY": "1", "PREFECT_UI_STATIC_DIRECTORY": PAGES, "PREFECT_UI_API_URL": "/api"}
    _become(commands.prefect_server("0.0.0.0", 4200), prefect_variables() | guard | here)


def run_prefect_services() -> None:
    """What Prefect does by itself: late runs, events, automations; from when its server has made the tables."""
    from flows.stack.prefect_setup import await_server

    with cluster_client(retries=0) as client:
        await_server(client, _say)
    secret = {"PREFECT_SERVER_API_AUTH_STRING": secret_of("prefect_auth_string")}
    _become([sys.executable, "-m", "prefect", "server", "services", "start"], prefect_variables() | _client() | secret)


def run_mlflow_server() -> None:
    """The tracking server: it asks for a user, keeps runs in PostgreSQL and artifacts in an S3 store that only it can reach."""
    from tasks.tracking.schema import ensure_user

    auth = {
        "default_permission": "NO_PERMISSIONS",  # each user writes into what he has made, and reads nobody else's
        "database_uri": _database("postgresql+psycopg", "mlflow", "mlflow_auth"),
        "admin_username": USER,
        # A login is checked anew after so many seconds; without it each request costs a slow hash.
        "auth_cache_ttl_seconds": "60",
    }
    AUTH_FILE.touch(mode=0o600)
    AUTH_FILE.write_text("[mlflow]\n" + "".join(f"{key} = {value.replace('%', '%%')}\n" for key, value in auth.items()))
    variables = {
        "MLFLOW_BACKEND_STORE_URI": _database("postgresql+psycopg", "mlflow"),  # not on the command line, which others can read
        "MLFLOW_AUTH_CONFIG_PATH": str(AUTH_FILE),
        "MLFLOW_AUTH_ADMIN_PASSWORD": secret_of("mlflow_password"),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secret_of("mlflow_session_key"),
        **store_variables(),
    }
    ensure_bucket(store_variables())
    ensure_user(auth["database_uri"], WORKER_USER, secret_of("mlflow_worker_password"))
    ours = loopback_hosts(_port(MLFLOW_PORT_VARIABLE, 5000)).split(",")
    options = {"--app-name": "basic-auth", "--artifacts-destination": f"s3://{BUCKET}"}
    _become(commands.mlflow_server("0.0.0.0", 5000, [MLFLOW, *ours], ours, options), variables)


def upgrade_mlflow() -> None:
    """Bring MLflow's two databases to the version that is installed; the server must not run meanwhile."""
    from tasks.tracking.schema import upgrade_schema

    upgrade_schema(_database("postgresql+psycopg", "mlflow"), _database("postgresql+psycopg", "mlflow", "mlflow_auth"))


def store_variables() -> dict[str, str]:
    """Return what a client of the artifact store needs, under the names that MLflow and boto3 know."""
    return {
        "MLFLOW_S3_ENDPOINT_URL": f"http://{OBJECTS}",
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": secret_of("s3_secret_key"),
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def run_setup() -> None:
    """Make pool, queues, deployments and automations, and end; servers that have just started may need several attempts."""
    import httpx

    from flows.stack.prefect_setup import set_up

    environment = {**os.environ, **STACK_VARIABLES, **_client(), "PWD": str(Path.cwd())}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with cluster_client() as client:
                set_up(client, None, environment, version_mark())
            return
        except (httpx.HTTPError, StackError) as error:
            if attempt == ATTEMPTS:
                raise ClusterError(f"Prefect cannot be set up: {error}") from error
            _say(f"attempt {attempt}: {type(error).__name__}: {error}")
            time.sleep(PAUSE_SECONDS)


def run_worker() -> None:
    """Take runs, as many at a time as the host has slots."""
    from grpo_core.machine.gpus import slot_count

    _run_worker(RUNS_QUEUE, slot_count() or 1)


def run_sweep_worker() -> None:
    """Take sweeps, which wait for runs: under a limit one would hold the place that it waits for."""
    _run_worker(SWEEPS_QUEUE, None)


ROLES: dict[str, Callable[[], None]] = {
    "check": check_secrets,
    "prefect-server": run_prefect_server,
    "prefect-services": run_prefect_services,
    "mlflow-server": run_mlflow_server,
    "mlflow-upgrade": upgrade_mlflow,
    "setup": run_setup,
    "worker": run_worker,
    "sweep-worker": run_sweep_worker,
}


def _run_worker(queue: str, limit: int | None) -> None:
    from flows.stack.prefect_setup import await_set_up, crash_runs_of

    name = os.environ[WORKER_VARIABLE]
    with cluster_client(retries=0) as client:
        await_set_up(client, version_mark(), _say)
    with cluster_client() as client:
        if lost := crash_runs_of(client, name):
            _say(f"{lost} run(s) of before had lost their process and are Crashed now")
    study = {"GRPO_STUDY_URL": _database("postgresql+psycopg", "optuna")}
    _become(commands.worker(name, queue=queue, limit=limit), worker_variables() | study)


def worker_variables() -> dict[str, str]:
    """Return what reaches both servers."""
    login = {"MLFLOW_TRACKING_USERNAME": WORKER_USER, "MLFLOW_TRACKING_PASSWORD": secret_of("mlflow_worker_password")}
    return _client() | login | {"GRPO_VLLM_KEY": secret_of("vllm_key")}


def version_mark() -> str:
    """Return what tells the setup by this image from that by another: the commit that it was built of, and changes since."""
    from grpo_core.run.provenance import source_state

    commit, diff = source_state()
    changes = f" with changes {hashlib.sha256(diff.encode()).hexdigest()[:8]}" if diff else ""
    return f"set up by {(commit or 'no commit')[:12]}{changes}"


def cluster_client(retries: int = RETRIES) -> "httpx.Client":
    """Return a client of the stack's Prefect API that carries its secret.

    Args:
        retries: how often it asks a server again that does not listen, the pauses doubling from half a second.
    """
    import base64

    import httpx

    login = base64.b64encode(secret_of("prefect_auth_string").encode()).decode()
    transport = httpx.HTTPTransport(retries=retries)
    return httpx.Client(
        base_url=f"http://{PREFECT}/api",
        headers={"Authorization": f"Basic {login}"},
        timeout=REQUEST_SECONDS,
        trust_env=False,
        transport=transport,
    )


def _client() -> dict[str, str]:
    return client_variables(f"http://{PREFECT}/api", secret_of("prefect_auth_string"), f"http://{MLFLOW}")


def _database(driver: str, user: str, database: str | None = None) -> str:
    """Return the address of a database, whose user has the same name."""
    password = quote(secret_of(f"{user}_database_password"), safe="")
    return f"{driver}://{user}:{password}@{POSTGRES}/{database or user}"


def _port(variable: str, usual: int) -> int:
    value = os.environ.get(variable) or str(usual)
    if not value.isdecimal():
        raise ClusterError(f"{variable}={value}: is no port")
    return int(value)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def _become(command: list[str], variables: dict[str, str]) -> None:
    os.execve(command[0], command, {**os.environ, **STACK_VARIABLES, **variables})


def main(arguments: list[str]) -> None:
    """Run one role."""
    if len(arguments) != 1 or arguments[0] not in ROLES:
        sys.exit(f"usage: python -m flows.stack.cluster {{{','.join(ROLES)}}}")
    try:
        ROLES[arguments[0]]()
    except (ClusterError, StackError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
