"""The servers that a stranger finds on this machine: those of `grpo up`, and the embedded one of every command."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.project import ROOT, Project
from tests.security.browser import Browser, chromium, running_browser
from tests.security.doors import Door
from tests.security.page import serving_page

EMBEDDED = """
import json, os, sys
from flows.stack.embedded import start_embedded_server
start_embedded_server()
print(json.dumps([os.environ.get("PREFECT_API_URL"), os.environ.get("PREFECT_API_AUTH_STRING")]), flush=True)
sys.stdin.read()
"""
"""A command that has started its embedded server, and waits."""


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("project"))
    (project.folder / "configs").symlink_to(ROOT / "configs")
    done = project.grpo("up")
    try:
        assert done.returncode == 0, done.stderr + done.stdout
        yield project
    finally:
        assert project.grpo("down", "--patience", "5").returncode == 0


@pytest.fixture(scope="session")
def stack_door(project: Project) -> Door:
    return Door(name="stack", address=project.stack.prefect_address, secret=project.secret)


@pytest.fixture(scope="session")
def embedded_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("embedded")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    environment: dict[str, Any] = {**kept, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(folder / "home")}
    command = [sys.executable, "-c", EMBEDDED]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address, secret = json.loads(process.stdout.readline())
        yield Door(name="embedded", address=address.removesuffix("/api"), secret=secret)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


@pytest.fixture(scope="session", params=["stack", "embedded"])
def door(request: pytest.FixtureRequest) -> Door:
    """Each Prefect server of ours, furnished with a deployment, a pool and a variable."""
    door: Door = request.getfixturevalue(f"{request.param}_door")
    door.furnish()
    return door


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        reason = "Chromium is not installed (apt-get install chromium)"
        sys.stdout.write(f"skipped: {reason}\n")
        pytest.skip(reason)
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
