"""What a worker of docker-compose.yml may do in MLflow: the server as the container starts it, on SQLite, and a real run."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.stack import cluster
from tests.compose.file import SECRET, program, variables, write_secrets
from tests.e2e.project import wait_for
from tests.torture.servers import MlflowServer

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:starlette.middleware.wsgi"),  # of MLflow's server
]

ROOT = Path(__file__).parents[2]
API = "/api/2.0/mlflow"


@dataclass(frozen=True)
class Guarded:
    """The server, and the variables of a worker."""

    address: str
    server: dict[str, str]
    variables: dict[str, str]

    def ask(self, user: str, method: str, path: str, **body: Any) -> httpx.Response:
        """Ask as the administrator or as the worker."""
        worker = (self.variables["MLFLOW_TRACKING_USERNAME"], self.variables["MLFLOW_TRACKING_PASSWORD"])
        login = worker if user == "worker" else ("grpo", self.server["MLFLOW_AUTH_ADMIN_PASSWORD"])
        given: dict[str, Any] = {"params": body} if method == "GET" else {"json": body}
        return httpx.request(method, self.address + API + path, auth=login, timeout=60, trust_env=False, **given)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    for service in ("mlflow-server", "worker"):
        write_secrets(folder / service, service)
    port = MlflowServer(folder).address.rpartition(":")[2]
    address = f"http://127.0.0.1:{port}"
    settings = (ROOT / "docker" / "mlflow-auth.ini").read_text()
    (folder / "auth.ini").write_text(re.sub("database_uri = .*", f"database_uri = sqlite:///{folder}/users.db", settings))
    store = {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder}/runs.db", "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini")}
    server = {**os.environ, **variables("mlflow-server", folder / "mlflow-server"), **store}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.items():
            patch.setenv(name, value)
        patch.setattr(cluster, "_make_bucket", lambda: None)
        for _ in range(2):  # as after a restart
            cluster.prepare_mlflow()
        command = [sys.executable, *program("mlflow-server", GRPO_MLFLOW_PORT=port)[1:]]
        ours = {"--host": "127.0.0.1", "--port": port, "--artifacts-destination": str(folder / "artifacts")}
        for option, value in ours.items():
            command[command.index(option) + 1] = value
        with (folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=server, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_for(lambda: answers(f"{address}/health"))
            yield Guarded(address, server, {**variables("worker", folder / "worker"), "MLFLOW_TRACKING_URI": address})
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(address: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(address, timeout=1, trust_env=False).is_success
    return False


def test_the_worker_tracks_a_run_and_registers_its_export(
    guarded: Guarded, grpo: Callable[..., Any], tiny_yaml: Path, tmp_path: Path
) -> None:
    login = {name: value for name, value in guarded.variables.items() if name.startswith("MLFLOW_TRACKING")}
    done = grpo("train", str(tiny_yaml), "--run-dir", "runs/one", cwd=tmp_path, **login)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("warning: ") and "data." not in line] == []
    facts = json.loads((tmp_path / "runs" / "one" / "tracking.json").read_text())
    run = guarded.ask("admin", "GET", "/runs/get", run_id=facts["run_id"]).json()["run"]
    assert run["info"]["status"] == "FINISHED"
    for verb in (("report",), ("track",), ("export", "--register", "sums")):
        done = grpo(verb[0], "runs/one", *verb[1:], cwd=tmp_path, **login)
        assert done.returncode == 0, done.stderr
        assert "warning" not in done.stderr
    versions = guarded.ask("worker", "GET", "/model-versions/search", filter="name = 'sums'").json()["model_versions"]
    assert [version["run_id"] for version in versions] == [facts["run_id"]]
    # The tag that ends a training is set by people, whose login is the administrator's.
    stop = guarded.ask("admin", "POST", "/runs/set-tag", run_id=facts["run_id"], key="grpo.stop", value="enough")
    assert stop.status_code == 200


def test_the_worker_may_nothing_that_is_not_of_its_own_runs(guarded: Guarded) -> None:
    mine = guarded.ask("admin", "POST", "/experiments/create", name="of a person").json()["experiment_id"]
    run_id = guarded.ask("admin", "POST", "/runs/create", experiment_id=mine).json()["run"]["info"]["run_id"]
    guarded.ask("admin", "POST", "/registered-models/create", name="of a person")
    name, other = guarded.variables["MLFLOW_TRACKING_USERNAME"], "another-long-password"
    refused = {
        "make a user": ("POST", "/users/create", {"username": "eve", "password": other}),
        "make an administrator": ("PATCH", "/users/update-admin", {"username": name, "is_admin": True}),
        "change the administrator's password": ("PATCH", "/users/update-password", {"username": "grpo", "password": other}),
        "remove the administrator": ("DELETE", "/users/delete", {"username": "grpo"}),
        "see the administrator": ("GET", "/users/get", {"username": "grpo"}),
        "read an experiment": ("GET", "/experiments/get", {"experiment_id": mine}),
        "delete an experiment": ("POST", "/experiments/delete", {"experiment_id": mine}),
        "permit itself an experiment": (
            "POST",
            "/experiments/permissions/create",
            {"experiment_id": mine, "username": name, "permission": "MANAGE"},
        ),
        "read a run": ("GET", "/runs/get", {"run_id": run_id}),
        "write into a run": ("POST", "/runs/set-tag", {"run_id": run_id, "key": "grpo.stop", "value": ""}),
        "delete a run": ("POST", "/runs/delete", {"run_id": run_id}),
        "make a run": ("POST", "/runs/create", {"experiment_id": mine}),
        "read a model": ("GET", "/registered-models/get", {"name": "of a person"}),
        "delete a model": ("DELETE", "/registered-models/delete", {"name": "of a person"}),
    }
    answers = {}
    for what, (method, path, body) in refused.items():
        answers[what] = guarded.ask("worker", method, path, **body).status_code
    assert answers == dict.fromkeys(refused, 403)
    found = guarded.ask("worker", "POST", "/experiments/search", max_results=100).json().get("experiments", [])
    assert mine not in {experiment["experiment_id"] for experiment in found}
    assert guarded.ask("admin", "GET", "/runs/get", run_id=run_id).json()["run"]["info"]["lifecycle_stage"] == "active"


def test_a_password_that_was_replaced_lets_nobody_in(tmp_path: Path) -> None:
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore

    from tasks.tracking.databases import ensure_user

    users = f"sqlite:///{tmp_path / 'users.db'}"
    for password in (f"{SECRET}old", f"{SECRET}new"):
        ensure_user(users, cluster.WORKER, password)
    store = SqlAlchemyStore()
    store.init_db(users)
    let_in = [store.authenticate_user(cluster.WORKER, f"{SECRET}{which}") for which in ("old", "new")]
    assert let_in == [False, True]
    assert not store.get_user(cluster.WORKER).is_admin
