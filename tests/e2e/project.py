"""A folder with the project in it, where a test works as a user does."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Self

import psutil

from flows.stack.services import service_processes
from flows.stack.state import Stack, prefect_client, read_stack

ROOT = Path(__file__).parents[2]
PARTS = ("flows", "tasks", "grpo_core", "prefect.yaml")


class Project:
    """A folder with the project in it, and commands that run there."""

    def __init__(self, folder: Path, seconds: float = 300, **variables: str) -> None:
        """Link the project's parts into `folder`; `variables` are set for all that is started there."""
        self.folder = folder
        self._seconds = seconds
        self._variables = variables
        for part in PARTS:
            (folder / part).symlink_to(ROOT / part)

    def run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_TRACKING"))},
            "PWD": str(self.folder),
            "PYTHONPATH": str(ROOT),
            "PREFECT_HOME": str(self.folder / "home"),
            "COLUMNS": "400",
            "GRPO_ALLOWED_SOURCES": tempfile.gettempdir(),  # where the tests' models are
            **self._variables,
        }
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=self._seconds, check=False
        )

    def with_variables(self, **variables: str) -> Self:
        other = copy(self)
        other._variables = {**self._variables, **variables}
        return other

    def grpo(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("flows.cli", *arguments)

    @contextmanager
    def up(self, *options: str) -> Iterator[Self]:
        """Have the stack up while inside."""
        done = self.grpo("up", *options)
        try:
            assert done.returncode == 0, done.stderr + done.stdout
            yield self
        finally:
            assert self.grpo("down", "--patience", "20").returncode == 0

    @property
    def secret(self) -> str:
        return (self.folder / ".grpo" / "prefect" / "secret").read_text().strip()

    @property
    def stack(self) -> Stack:
        stack = read_stack(self.folder / ".grpo")
        assert stack is not None
        return stack

    def kill(self, service: str) -> None:
        processes = service_processes(self.stack.folder)[service]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes)

    def start(self, deployment: str, *parameters: str) -> str:
        pairs = [word for parameter in parameters for word in ("--param", parameter)]
        done = self.run("prefect", "deployment", "run", deployment, *pairs)
        assert done.returncode == 0, done.stderr + done.stdout
        return next(line.rpartition(" ")[2] for line in done.stdout.splitlines() if "UUID" in line)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        with prefect_client(self.stack, 30) as client:
            return client.request(method, path, json=body).raise_for_status().json()

    def flow_run(self, run_id: str) -> Any:
        return self.api("GET", f"/flow_runs/{run_id}")

    def finished(self, run_id: str) -> Any:
        return wait_for(lambda: (run := self.flow_run(run_id)) and run["end_time"] and run)

    def run_dir(self, run_id: str) -> Path:
        return self.folder / self.flow_run(run_id)["parameters"]["run_dir"]

    def task_states(self, run_id: str) -> dict[str, str]:
        """Return {task: name of its state} of a flow run."""
        tasks = self.api("POST", "/task_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}})
        return {task["name"].rsplit("-", 1)[0]: task["state_name"] for task in tasks}


def wait_for(condition: Any, seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.3)
    return value
