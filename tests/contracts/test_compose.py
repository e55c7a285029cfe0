"""docker-compose.yml: every service is pinned and has a health check; the ports stay on loopback."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_the_four_services_are_there(services: dict[str, Any]) -> None:
    assert {"postgres", "prefect-server", "mlflow-server", "worker"} <= services.keys()


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


def test_images_match_the_pinned_packages(services: dict[str, Any]) -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert f":{pins['prefect']}-" in services["prefect-server"]["image"]
    assert f":v{pins['mlflow']}-" in services["mlflow-server"]["image"]
