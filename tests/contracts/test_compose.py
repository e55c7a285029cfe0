"""docker-compose.yml: every service is pinned and has a health check; the ports stay on loopback."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.stack.prefect_app import FACTORY, HOSTS_VARIABLE
from grpo_core.generation.vllm import environment
from grpo_core.generation.vllm.server import PYTHON_VARIABLE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_the_services_are_there(services: dict[str, Any]) -> None:
    assert {"postgres", "prefect-server", "mlflow-server", "worker", "sweep-worker"} <= services.keys()


def test_images_are_pinned_to_a_version(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if "build" in service:
            continue
        tag = service["image"].rpartition(":")[2]
        assert any(character.isdigit() for character in tag), name
        assert "latest" not in tag, name


def test_every_service_has_a_health_check_and_waits_for_healthy_ones(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["healthcheck"]["test"], name
        for needed in service.get("depends_on", {}).values():
            assert needed["condition"] == "service_healthy", name


def test_ports_are_published_on_loopback_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_workers_image_has_vllm_where_env_asks_for_it(services: dict[str, Any]) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for name in ("worker", "sweep-worker"):
        assert services[name]["build"]["args"] == {"VLLM": "${GRPO_VLLM:-}"}
    assert {f"{kind})" for kind in ("cpu", "cuda")} <= set(re.findall(r"^ +(\w+\))", dockerfile, re.MULTILINE))
    [folder] = set(re.findall(rf"python -m {environment.__name__} (\S+)", dockerfile))
    assert f"ENV {PYTHON_VARIABLE}={folder}/bin/python" in dockerfile


def test_images_match_the_pinned_packages(services: dict[str, Any]) -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert f":v{pins['mlflow']}-" in services["mlflow-server"]["image"]


def test_prefect_runs_behind_the_guard_and_asks_for_the_secret_that_every_client_has(services: dict[str, Any]) -> None:
    server = services["prefect-server"]
    assert server["build"] == "."  # the image that has the guard, with the Prefect that constraints.txt pins
    assert server["command"].startswith(f"uvicorn --factory {FACTORY} --host 0.0.0.0 --port 4200 ")
    variables = server["environment"]
    hosts = variables[HOSTS_VARIABLE].split(",")
    assert set(hosts) == {"prefect-server:4200", "localhost:4200", "127.0.0.1:4200"}
    assert set(variables["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"].split(",")) == {
        f"http://{host}" for host in hosts if host != "prefect-server:4200"
    }
    asked = "${PREFECT_API_AUTH_STRING:?set PREFECT_API_AUTH_STRING in .env}"
    assert variables["PREFECT_SERVER_API_AUTH_STRING"] == asked
    for name, service in services.items():
        if (url := service.get("environment", {}).get("PREFECT_API_URL")) is not None:
            assert service["environment"]["PREFECT_API_AUTH_STRING"] == asked, name
            assert url.split("/")[2] in hosts, name
        if "/api/health" in (check := " ".join(service["healthcheck"]["test"])):
            assert re.findall(r"http://([^/]+)/", check)[0] in hosts, name


def test_mlflow_answers_to_its_own_names_alone(services: dict[str, Any]) -> None:
    hosts = re.findall(r'--allowed-hosts "([^"]+)"', services["mlflow-server"]["command"])[0].split(",")
    assert hosts == ["mlflow-server:5000", "localhost:5000", "127.0.0.1:5000"]


def test_secrets_have_no_default_and_stay_out_of_the_image() -> None:
    example = dict(line.split("=", 1) for line in (ROOT / ".env.example").read_text().splitlines() if not line.startswith("#"))
    assert example["PREFECT_API_AUTH_STRING"] == ""
    assert {".env", ".grpo", "prefect.toml"} <= set((ROOT / ".dockerignore").read_text().splitlines())


def test_trainings_have_a_limit_that_sweeps_do_not_count_against(services: dict[str, Any]) -> None:
    trains, sweeps = (services[name]["command"].split("exec ")[1] for name in ("worker", "sweep-worker"))
    assert "--work-queue default " in trains
    assert "--limit 1 " in trains
    assert "--work-queue sweeps " in sweeps
    assert "--limit" not in sweeps
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    queues = {deployment["entrypoint"]: deployment["work_pool"].get("work_queue_name") for deployment in deployments}
    assert {entrypoint for entrypoint, queue in queues.items() if queue == "sweeps"} == {
        "flows.sweep.grpo_sweep",
        "flows.sweep.resume_sweep",
    }
    assert set(queues.values()) == {"sweeps", None}  # None: the pool's queue `default`


def test_every_database_that_a_service_connects_to_is_created(services: dict[str, Any]) -> None:
    postgres = services["postgres"]
    scripts = [volume.split(":")[0] for volume in postgres["volumes"] if "docker-entrypoint-initdb.d" in volume]
    created = {
        postgres["environment"]["POSTGRES_DB"],
        *(name for script in scripts for name in re.findall(r"CREATE DATABASE (\w+);", (ROOT / script).read_text())),
    }
    used = set(re.findall(r"postgresql\S*@postgres:5432/(\w+)", yaml.safe_dump(services, width=1000)))
    assert used == created == {"prefect", "mlflow", "optuna"}


def test_both_workers_know_the_study_and_no_password_is_written_down(services: dict[str, Any]) -> None:
    for name in ("worker", "sweep-worker"):
        address = services[name]["environment"]["GRPO_STUDY_URL"]
        assert address.startswith("postgresql+psycopg://")
        assert services[name]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    passwords = re.findall(r"postgresql\S*?://[^:]*:-grpo\}:([^@]+)@", (ROOT / "docker-compose.yml").read_text())
    assert set(passwords) == {"${POSTGRES_PASSWORD}"}
    assert len(passwords) == 3


def test_no_password_is_on_a_command_line(services: dict[str, Any]) -> None:
    assert [name for name, service in services.items() if "PASSWORD" in str(service.get("command", ""))] == []
