"""The servers that a stranger finds on this machine: those of `grpo up`, and the embedded one of every command."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.project import ROOT, Project
from tests.integration.test_embedded import Command
from tests.security.browser import Browser, chromium, running_browser
from tests.security.doors import Door
from tests.security.page import serving_page


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("project"))
    (project.folder / "configs").symlink_to(ROOT / "configs")
    with project.up():
        yield project


@pytest.fixture(scope="session")
def stack_door(project: Project) -> Door:
    return Door(name="stack", address=project.stack.prefect_address, secret=project.secret)


@pytest.fixture(scope="session")
def embedded_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    command = Command(tmp_path_factory.mktemp("embedded"))
    address, secret = command.ready()
    yield Door(name="embedded", address=address.removesuffix("/api"), secret=secret)
    command.process.communicate(timeout=60)


@pytest.fixture(scope="session", params=["stack", "embedded"])
def door(request: pytest.FixtureRequest) -> Door:
    """Each Prefect server of ours, furnished with a deployment, a pool and a variable."""
    door: Door = request.getfixturevalue(f"{request.param}_door")
    door.furnish()
    return door


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def page_port() -> Iterator[int]:
    with serving_page() as port:
        yield port


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file that is there once a stranger's code has run."""
    return tmp_path / "canary"
