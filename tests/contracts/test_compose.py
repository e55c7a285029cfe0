"""docker-compose.yml and the Dockerfile: pinned, healthy, limited, on loopback, without root; started as `grpo up` starts."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.stack import cluster, commands, prefect_api, services
from flows.stack.state import Stack
from tasks.run.monitoring import EVENT_NAMES
from tests.compose.file import ENTRYPOINT, options, program, read_compose, variables, write_secrets

ROOT = Path(__file__).parents[2]
ONE_SHOT = {"check", "setup"}
PYTHON_ROLES = {"check", "setup", "prefect-server", "prefect-services", "mlflow-server", "worker", "sweep-worker"}
LASTING = sorted(PYTHON_ROLES - ONE_SHOT)
MAKE_SECRETS = runpy.run_path(str(ROOT / "docker" / "make_secrets.py"))
EXAMPLES = [f"A-{word.upper()}-of-sufficient-length" for word in ("change-me", "changeme", "example", "password", "secret")]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return read_compose()


@pytest.fixture(scope="module")
def described(compose: dict[str, Any]) -> dict[str, Any]:
    return compose["services"]


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Secrets as they lie in the container of the check, each another one."""
    write_secrets(tmp_path / "secrets", "check")
    return tmp_path / "secrets"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The variables of each service that lasts, with its own secrets alone."""
    folders = {service: tmp_path_factory.mktemp(service) for service in [*LASTING, "setup"]}
    for service, folder in folders.items():
        write_secrets(folder, service)
    return {service: variables(service, folder) for service, folder in folders.items()}


def test_the_services_are_there(described: dict[str, Any]) -> None:
    expected = PYTHON_ROLES | {"postgres", "redis", "s3", "gpu-worker", "vllm"}
    assert described.keys() == expected
    assert {name: service["profiles"] for name, service in described.items() if "profiles" in service} == {
        "gpu-worker": ["gpu"],
        "vllm": ["vllm"],
    }


def test_what_lasts_has_a_health_check_and_what_is_needed_is_waited_for(described: dict[str, Any]) -> None:
    for name, service in described.items():
        if name in ONE_SHOT:
            assert service["restart"] in ("no", "on-failure"), name
        else:
            assert service["healthcheck"]["test"], name
            assert service["restart"] == "unless-stopped", name
        for needed, how in service.get("depends_on", {}).items():
            ends = needed in ONE_SHOT
            assert how["condition"] == ("service_completed_successfully" if ends else "service_healthy"), (name, needed)


def test_ports_are_published_on_loopback_only(described: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in described.items() if "ports" in service}
    assert ports.keys() == {"prefect-server", "mlflow-server"}
    assert all(port.startswith("127.0.0.1:") for listed in ports.values() for port in listed)


def test_nothing_is_root_and_everything_has_limits(described: dict[str, Any]) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for target in ("servers", "trainer", "vllm"):
        last = dockerfile.split(f" AS {target}\n")[1].split("\nFROM ")[0]
        assert "\nUSER 1000:1000\n" in last, target
    for name, service in described.items():
        assert "build" in service or not service["user"].startswith(("0", "root")), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}, name


def test_secrets_are_files_that_the_script_makes_and_each_service_has_only_its_own(
    compose: dict[str, Any], found: dict[str, dict[str, str]]
) -> None:
    named = {name: secret["file"] for name, secret in compose["secrets"].items()}
    assert named == {name: f"./secrets/{name}" for name in MAKE_SECRETS["NAMES"]}
    assert set(compose["services"]["check"]["secrets"]) == set(MAKE_SECRETS["NAMES"])
    for service, given in found.items():
        text = json.dumps(compose["services"][service])
        used = set(re.findall(r"\$\{?([a-z]\w+)", text))
        assert used == set(compose["services"][service]["secrets"]), service
        assert not any("$" in value for value in given.values()), service
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "secrets/" in ignored
    assert {".env", ".grpo", "prefect.toml", "secrets"} <= set((ROOT / ".dockerignore").read_text().splitlines())


def test_no_secret_is_in_the_file_or_on_a_command_line(compose: dict[str, Any], described: dict[str, Any]) -> None:
    assert not re.search(r"(password|secret|key)\w*[:=] *\$\{", (ROOT / "docker-compose.yml").read_text(), re.IGNORECASE)
    for role in LASTING:
        assert not any(name in " ".join(program(role)) for name in compose["secrets"]), role


ODD = [
    "a/slash-that-a-url-has",
    "an@at-that-a-url-has",
    "a$dollar-of-a-variable",
    "has spaces in it and is long",
    "short" + 20 * " ",
    20 * " ",
    20 * "ä",
    "a-tab-in-it\tand-is-long",
    "x" * 15,
]


@pytest.mark.parametrize("bad", ["change-me", "change-me-change-me-change-me", "short", "", *ODD, *EXAMPLES])
def test_every_image_refuses_bad_secrets(secrets: Path, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_SECRETS", str(secrets))
    (secrets / "of-the-engine").mkdir()
    starts = [*ENTRYPOINT, "echo", "started", "it is"]
    assert subprocess.run(starts, capture_output=True, text=True, check=True).stdout == "started it is\n"
    (secrets / "redis_password").write_text(bad + "\n")
    done = subprocess.run(starts, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    refusal = rf"error: {secrets}/redis_password: (is an example's|at least 16 letters).*docker/make_secrets\.py"
    assert re.match(refusal, done.stderr)


def test_every_image_starts_by_refusing(described: dict[str, Any]) -> None:
    assert 'ENTRYPOINT ["sh", "/app/refuse-examples.sh"]' in (ROOT / "Dockerfile").read_text().split(" AS vllm\n")[1]
    assert not {"entrypoint", "command"} & described["vllm"].keys()
    assert (ROOT / "Dockerfile").read_text().count('["sh", "/app/refuse-examples.sh", "python", "/app/entrypoint.py"]') == 2
    others = {name: service for name, service in described.items() if "build" not in service}
    assert others.keys() == {"postgres", "redis", "s3"}
    for name, service in others.items():
        assert service["entrypoint"][:2] == ["sh", "/refuse-examples.sh"], name
        assert "./docker/refuse-examples.sh:/refuse-examples.sh:ro" in service["volumes"], name


def test_grpo_up_and_the_containers_start_the_same_programs() -> None:
    addressed = {"--host", "--allowed-hosts", "--cors-allowed-origins"}
    stores = {"--backend-store-uri", "--artifacts-destination", "--app-name"}
    own = {"--name", "--work-queue", "--limit", "--with-healthcheck"}
    for one, service, apart in (
        (commands.prefect_server(4200), "prefect-server", addressed),
        (commands.mlflow_server(5000, "sqlite:///x", "/x"), "mlflow-server", addressed | stores),
        (commands.worker("one"), "worker", own),
        (commands.worker("one"), "sweep-worker", own),
    ):
        other = program(service)
        assert one[1:3] == other[1:3] == ["-m", one[2]]
        rest = [{key: value for key, value in options(command).items() if key not in apart} for command in (one, other)]
        assert rest[0] == rest[1], service


def test_grpo_up_and_the_containers_set_the_same_variables(found: dict[str, dict[str, str]], tmp_path: Path) -> None:
    stack = Stack(folder=tmp_path, prefect_port=4200, mlflow_port=5000, project=tmp_path)
    local = services.stack_environment(stack)
    for service in LASTING:
        assert commands.STACK_VARIABLES.items() <= found[service].items(), service
    assert commands.STACK_VARIABLES.items() <= local.items()
    for service in ("worker", "sweep-worker"):
        assert {"PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI"} <= found[service].keys() & local.keys()
    secured = {"GRPO_PREFECT_HOSTS", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"}
    assert secured <= found["prefect-server"].keys()


def test_servers_answer_to_their_own_names_alone(tmp_path: Path) -> None:
    write_secrets(tmp_path, "prefect-server")
    ports = {"GRPO_PREFECT_PORT": "14200", "GRPO_MLFLOW_PORT": "15000"}
    hosts = variables("prefect-server", tmp_path, **ports)["GRPO_PREFECT_HOSTS"]
    assert hosts.split(",") == ["prefect-server:4200", "127.0.0.1:14200", "localhost:14200", "127.0.0.1:4200"]
    mlflow = options(program("mlflow-server", **ports))
    assert mlflow["--allowed-hosts"] == "mlflow-server:5000,127.0.0.1:15000,localhost:15000,127.0.0.1:5000"
    assert mlflow["--app-name"] == "basic-auth"


def test_trainings_have_a_limit_that_sweeps_do_not_count_against() -> None:
    trains, sweeps = options(program("worker", GRPO_SLOTS="3")), options(program("sweep-worker"))
    assert (trains["--work-queue"], trains["--limit"]) == ("default", "3")
    assert (sweeps["--work-queue"], sweeps.get("--limit")) == ("sweeps", None)
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    queues = {deployment["entrypoint"]: deployment["work_pool"].get("work_queue_name") for deployment in deployments}
    assert {entrypoint for entrypoint, queue in queues.items() if queue == "sweeps"} == {
        "flows.sweep.grpo_sweep",
        "flows.sweep.resume_sweep",
    }
    assert set(queues.values()) == {"sweeps", None}  # None: the pool's queue `default`


def test_the_budget_automation_waits_for_the_event_that_runs_emit() -> None:
    assert EVENT_NAMES["kl_budget"] == prefect_api.BUDGET_EVENT


def test_vllm_is_started_without_any_package_of_the_trainer() -> None:
    imports = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import grpo_core.generation.vllm.launch"
    subprocess.run([sys.executable, "-I", "-S", "-c", imports], check=True)


def test_workers_log_in_to_mlflow_as_somebody_else_than_its_administrator(
    compose: dict[str, Any], found: dict[str, dict[str, str]]
) -> None:
    admin = re.findall(r"^admin_username = (\w+)", (ROOT / "docker" / "mlflow-auth.ini").read_text(), re.MULTILINE)
    for service in ("worker", "sweep-worker"):
        assert found[service]["MLFLOW_TRACKING_USERNAME"] == cluster.WORKER != admin[0]
    for service in ("worker", "sweep-worker", "gpu-worker"):
        assert "mlflow_password" not in compose["services"][service]["secrets"]
