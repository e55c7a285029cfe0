"""One real Prefect server for all commands of a test session, and one finished run of the flow on the tiny model."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config import apply_overrides
from tests.conftest import build_values_of_rows
from tests.e2e.postgres import private_postgres, why_no_postgres
from tests.support import commands

ROOT = Path(__file__).parents[2]


Finished = subprocess.CompletedProcess[str]
"""A command that has ended."""


@pytest.fixture(scope="session")
def tiny_values(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The values of all these tests."""
    return build_values_of_rows(tiny_model_dir, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def prefect_api() -> Iterator[str]:
    """Address of a Prefect server with a database of its own."""
    from prefect.settings import PREFECT_API_URL
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        address = PREFECT_API_URL.value()
        assert address is not None
        yield address


@pytest.fixture(scope="session")
def grpo(prefect_api: str) -> Callable[..., Finished]:
    """Return a function that runs the `grpo` command in a folder: a fork, or with variables that Prefect reads a process."""

    def run(*arguments: str, cwd: Path, timeout: float = 240, **environment: str) -> Finished:
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": prefect_api, **environment}
        if not any(name.startswith(commands.READ_BY_PREFECT) for name in environment):
            return commands.run(arguments, cwd, variables)
        return subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments],
            cwd=cwd,
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def tiny_yaml(tiny_values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration file for the tiny model that also evaluates during training."""
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(
        yaml.safe_dump(apply_overrides(tiny_values, {"evaluation.every_steps": 2, "evaluation.every_num_prompts": 5}))
    )
    return path


@pytest.fixture(scope="session")
def finished_run(
    grpo: Callable[..., Finished], prefect_api: str, tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Finished]:
    """(RUN_DIR, the command) of a run of the whole flow, as a user starts it; its store is mlflow.db beside the RUN_DIR."""
    folder = tmp_path_factory.mktemp("flow")
    done = grpo("train", str(tiny_yaml), "--run-dir", "runs/one", cwd=folder, PREFECT_API_URL=prefect_api)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "one", done


@pytest.fixture(scope="module")
def study_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a database for studies: PostgreSQL, or SQLite where PostgreSQL is not installed."""
    if why_no_postgres() is not None:
        yield f"sqlite:///{tmp_path_factory.mktemp('studies')}/studies.db"
        return
    with private_postgres() as address:
        yield address
