"""docker-compose.yml as a user meets it: healthy soon, closed to strangers, runs and sweeps work and outlive the containers."""

import base64
import json
import shutil
import subprocess

import httpx
import pytest

from tests.compose.evidence import problems, run_dir_of, steps, volume
from tests.compose.runs import start_tiny
from tests.compose.stack import HEALTHY_SECONDS, LASTING, ComposeStack, wait_for

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]


def test_everything_is_healthy_within_4_minutes(stack: ComposeStack) -> None:
    assert stack.seconds_to_healthy is None or stack.seconds_to_healthy < HEALTHY_SECONDS
    assert stack.conditions() == dict.fromkeys(LASTING, "healthy")


def test_nothing_runs_as_root(stack: ComposeStack) -> None:
    users = {service: stack.run_in(service, "id", "-u").strip() for service in LASTING}
    assert "0" not in users.values(), users


def _ask(address: str, login: str | None) -> int:
    headers = {} if login is None else {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    return httpx.post(address, json={}, headers=headers, timeout=30, trust_env=False).status_code


def test_both_servers_refuse_who_has_no_credentials_or_wrong_ones(stack: ComposeStack) -> None:
    prefect = f"{stack.prefect_address}/api/flows/filter"
    assert [_ask(prefect, login) for login in (None, "wrong", "grpo:wrong")] == [401, 401, 401]
    assert _ask(prefect, stack.secret("prefect_auth_string")) == 200
    mlflow = stack.mlflow_address
    for route in ("/", "/graphql", "/api/2.0/mlflow/runs/search", "/ajax-api/2.0/mlflow/runs/search", "/signup"):
        for login in (None, "grpo:wrong", "wrong:" + stack.secret("mlflow_password")):
            assert _ask(mlflow + route, login) == 401, (route, login)
    assert _ask(f"{mlflow}/api/2.0/mlflow/runs/search", "grpo:" + stack.secret("mlflow_password")) != 401
    for address in (f"{stack.prefect_address}/", f"{mlflow}/"):
        assert httpx.get(address, headers={"Host": "evil.example"}, trust_env=False).status_code == 403


def test_a_run_is_complete_and_knows_its_commit(stack: ComposeStack) -> None:
    run = stack.finished(start_tiny(stack, "first", steps=4))
    assert run["state_name"] == "Completed", run["state"]
    run_dir = run_dir_of(stack, "first")
    assert problems(stack, run_dir, 4) == []
    built, provenance = (json.loads(text) for text in (stack.read("/app/built_from.json"), run_dir.provenance_file.read_text()))
    assert provenance["git_commit"] == built["git_commit"] is not None
    # The artifacts are objects of the store's volume, and come back through MLflow's server.
    run_id = json.loads((run_dir.path / "tracking.json").read_text())["run_id"]
    assert stack.mlflow("GET", f"/artifacts/list?run_id={run_id}")["files"]
    assert any(run_id in str(path) for path in (volume(stack, "objects") / "mlflow").rglob("*"))


def test_a_worker_is_not_the_administrator_of_mlflow(stack: ComposeStack) -> None:
    held = stack.run_in("worker", "sh", "-c", "ls /run/secrets; cat /run/secrets/*")
    assert "mlflow_worker_password" in held
    assert stack.secret("mlflow_password") not in held


def test_down_and_up_keep_everything(stack: ComposeStack) -> None:
    before = _kept(stack)
    stack.compose("down")
    assert set(stack.conditions().values()) == {"absent"}
    stack.up()
    assert _kept(stack) == before


def _kept(stack: ComposeStack) -> dict[str, object]:
    runs = stack.prefect("POST", "/flow_runs/filter", {"sort": "START_TIME_ASC"})
    experiments = stack.mlflow("GET", "/experiments/search?max_results=100")["experiments"]
    tracked = [experiment["experiment_id"] for experiment in experiments]
    found = stack.mlflow("POST", "/runs/search", {"experiment_ids": tracked, "max_results": 200})["runs"]
    return {
        "prefect": [(run["id"], run["state_name"]) for run in runs],
        "mlflow": sorted((run["info"]["run_id"], len(run["data"]["metrics"])) for run in found),
        "files": sorted(str(path) for path in volume(stack, "runs").rglob("*") if "lock" not in path.name),
        "automations": sorted(each["name"] for each in stack.prefect("POST", "/automations/filter", {})),
    }


def test_a_dump_brings_everything_back_and_a_run_goes_on(stack: ComposeStack) -> None:
    run_id = start_tiny(stack, "halved", steps=40, slow=True)
    run_dir = run_dir_of(stack, "halved")
    wait_for(lambda: len(steps(run_dir)) > 4, 180, lambda: steps(run_dir))
    stack.prefect("POST", f"/flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    stack.finished(run_id)
    done, before = len(steps(run_dir)), _kept(stack)
    stack.documented("operations.md", "Back-up")
    stack.compose("down", "--volumes")
    shutil.rmtree(stack.folder / "secrets")
    stack.documented("operations.md", "Restore")
    stack.wait_healthy()
    assert _kept(stack) == before
    assert len(steps(run_dir)) == done < 40
    run = stack.finished(stack.start_run("grpo/resume", run_dir="runs/halved"))
    assert run["state_name"] == "Completed", run["state"]
    assert problems(stack, run_dir, 40) == []


def test_the_repository_alone_is_in_the_images(stack: ComposeStack) -> None:
    assert {*stack.run_in("worker", "ls", "-A", "/app").split()} == {
        "built_from.json",
        "configs",
        "entrypoint.py",
        "prefect.yaml",
        "refuse-examples.sh",
        "runs",
    }
    assert subprocess.run(["podman", "exec", stack.container("worker"), "which", "git"], check=False).returncode != 0
