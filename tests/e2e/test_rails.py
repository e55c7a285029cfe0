"""What a client of the stack's Prefect API can make a worker do with job variables and parameters: real server, real worker.

The client holds the API's secret here; without it nothing of this is answered (tests/security).
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.project import ROOT, Project

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

FOREIGN = """
from pathlib import Path

Path("foreign-code-ran").touch()
def score(prompts, completions, **columns):
    return [0.0 for _ in completions]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_values: dict[str, Any]) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("project"))
    (project.folder / "configs").mkdir()
    (project.folder / "configs" / "tiny.yaml").write_text(yaml.safe_dump(tiny_values))
    (project.folder / "foreign.py").write_text(FOREIGN)
    with project.up():
        yield project


@pytest.fixture
def touched(tmp_path: Path) -> Path:
    """A file that code of a client would make."""
    return tmp_path / "touched"


def variables(touched: Path) -> dict[str, Any]:
    """Job variables that ran code with Prefect's own template: each by itself does."""
    hook = touched.parent / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(f"from pathlib import Path\nPath({str(touched)!r}).touch()\n")
    return {
        "command": f"touch {touched}",
        "env": {"PYTHONPATH": f"{hook}{os.pathsep}{ROOT}"},
        "env.PYTHONPATH": f"{hook}{os.pathsep}{ROOT}",
        "working_dir": str(touched.parent),
    }


@pytest.mark.parametrize("name", ["command", "env", "env.PYTHONPATH", "working_dir", "stream_output"])
def test_a_run_with_a_job_variable_is_refused_by_the_server(project: Project, touched: Path, name: str) -> None:
    train = project.api("GET", "/deployments/name/grpo/train")
    body = {"job_variables": {name: {**variables(touched), "stream_output": True}[name]}}
    with pytest.raises(httpx.HTTPStatusError) as caught:
        project.api("POST", f"/deployments/{train['id']}/create_flow_run", body)
    assert caught.value.response.status_code == 422
    assert "Additional properties are not allowed" in caught.value.response.text


def test_job_variables_that_no_server_checks_reach_no_worker(project: Project, touched: Path) -> None:
    """A flow run that is made without its deployment's checks: the worker leaves out what the template does not name."""
    train = project.api("GET", "/deployments/name/grpo/train")
    body = {
        "flow_id": train["flow_id"],
        "deployment_id": train["id"],
        "work_pool_name": "grpo",
        "parameters": {"config": "no-such-preset"},
        "job_variables": variables(touched),
        "state": {"type": "SCHEDULED"},
    }
    run = project.api("POST", "/flow_runs/", body)
    ended = project.finished(run["id"])
    assert ended["state_type"] == "FAILED"
    assert "no such preset" in ended["state"]["message"] + ended["name"]
    assert not touched.exists()


REFUSED = {
    "a module that is not allowed": {"rewards": [{"fn": "foreign:score"}]},
    "an interpreter": {"training.python": "/tmp/python"},
    "another tracking server": {"tracking.uri": "http://127.0.0.1:9"},
}
"""What the worker does with a refusal; what is refused is the concern of tests/integration/test_rails.py."""


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(overrides, id=key, marks=[pytest.mark.slow] * (key != "a module that is not allowed"))
        for key, overrides in REFUSED.items()
    ],
)
def test_code_in_parameters_is_refused_by_name(project: Project, overrides: dict[str, Any]) -> None:
    run_id = project.start("grpo/train", "config=tiny", f"overrides={json.dumps(overrides)}")
    ended = project.finished(run_id)
    assert ended["state_type"] == "FAILED"
    (named,) = overrides
    assert named in ended["state"]["message"]
    assert not (project.folder / "foreign-code-ran").exists()
    assert not (project.folder / "runs").exists()
