"""A Prefect server that the user has chosen and that cannot be used: the command says so, and makes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"PREFECT_API_URL": "http://127.0.0.1:9/api"}, "PREFECT_API_URL (http://127.0.0.1:9/api) cannot be used"),
        ({"PREFECT_SERVER_EPHEMERAL_ENABLED": "false"}, "unless PREFECT_SERVER_EPHEMERAL_ENABLED is false"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, variables: dict[str, str], named: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "evaluate", "scratch:sums"],
        cwd=tmp_path,
        env={**kept, "PREFECT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert done.returncode == 2
    assert "unexpected" not in error
    assert named in error
    assert not any((tmp_path / "runs").glob("*"))
