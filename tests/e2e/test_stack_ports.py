"""Two stacks that start at the same moment both look for free ports, and find the same ones."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.project import Project

pytestmark = pytest.mark.proof


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_two_stacks_that_start_at_once_have_ports_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "configs").mkdir()
    projects = [Project(tmp_path / name) for name in ("one", "two")]
    try:
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda project: project.grpo("up"), projects))
        assert [process.returncode for process in done] == [0, 0], [process.stderr for process in done]
        stacks = [project.stack for project in projects]
        assert len({port for stack in stacks for port in (stack.prefect_port, stack.mlflow_port)}) == 4
        assert all("ready" in project.grpo("status").stdout for project in projects)
    finally:
        for project in projects:
            project.grpo("down", "--patience", "20")
