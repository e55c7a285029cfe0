"""The stack of docker-compose.yml, run by podman-compose from a clone of the committed state, as a user would run it."""

import base64
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.compose.machine import build_mounts

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PREFECT_PORT, MLFLOW_PORT = 14200, 15000
"""Not the usual ones: a stack of this machine may have those."""
LASTING = ("postgres", "redis", "s3", "prefect-server", "prefect-services", "mlflow-server", "worker", "sweep-worker")
ONE_SHOT = ("check", "setup")
POLL_SECONDS = 1.0
HEALTHY_SECONDS = 240.0
"""For everything to be healthy, once the images are built."""


class ComposeStack:
    def __init__(
        self,
        folder: Path,
        project: str = "grpo-test",
        *,
        files: tuple[str, ...] = ("docker-compose.yml",),
        profiles: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Take the stack of a clone.

        Args:
            folder: the clone.
            project: what containers and volumes are named after.
            files: what podman-compose reads, the later over the earlier.
            profiles: whose services are there, too.
            variables: what a user would write into `.env`.
        """
        self.folder, self.project, self.files, self.profiles = folder, project, files, profiles
        self.variables = dict(variables or {})
        self.seconds_to_healthy: float | None = None

    def clone(self) -> None:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.folder)], check=True)
        subprocess.run([sys.executable, "docker/make_secrets.py"], cwd=self.folder, check=True)

    def compose(self, *arguments: str, first: tuple[str, ...] = (), check: bool = True, seconds: float = 900) -> str:
        """Run podman-compose, with options `first` before its command, and return what it writes."""
        return self._shell(shlex.join([*self._podman_compose(), *first, *arguments]), check, seconds)

    def documented(self, page: str, heading: str) -> None:
        """Run the commands that a page of docs/ gives below a heading, `docker compose` being podman-compose."""
        text = (ROOT / "docs" / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
        for line in "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines():
            command = line.replace("docker compose up --detach --build", "docker compose up --detach")  # they are built
            self._shell(command.replace("docker compose", shlex.join(self._podman_compose())))

    def _podman_compose(self) -> list[str]:
        files = [word for file in self.files for word in ("--file", file)]
        profiles = [word for profile in self.profiles for word in ("--profile", profile)]
        return [sys.executable, "-m", "podman_compose", "--project-name", self.project, *files, *profiles]

    def _shell(self, line: str, check: bool = True, seconds: float = 900) -> str:
        ports = {"GRPO_PREFECT_PORT": str(PREFECT_PORT), "GRPO_MLFLOW_PORT": str(MLFLOW_PORT)}
        environment = {
            **os.environ,
            **self.variables,
            **ports,
            "BUILDAH_FORMAT": "docker",
            "PODMAN_COMPOSE_WARNING_LOGS": "false",
        }
        done = subprocess.run(
            ["bash", "-c", f"set -eo pipefail; {line}"],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert not check or done.returncode == 0, (line, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout + done.stderr

    def build(self, *services: str) -> None:
        """Build the images of services, with this machine's settings for pip; by default those that are in no profile."""
        settings = f"--podman-build-args=--network=host {' '.join(build_mounts())}"
        for service in services or ("check", "worker"):  # one after the other: the second finds the stages that both have
            self.compose("build", service, first=(settings,), seconds=1800)

    def up(self, *services: str, seconds: float = HEALTHY_SECONDS) -> float:
        """Start services, by default everything; return the seconds until every container that lasts is healthy.

        podman-compose leaves the order of starts to podman, and Debian 12's does not know it: all begin at once.
        """
        began = time.monotonic()
        self.compose("up", "--detach", "--no-build", *services)
        self.wait_healthy(tuple(name for name in services or LASTING if name not in ONE_SHOT), seconds)
        return time.monotonic() - began

    def log(self, service: str) -> str:
        done = subprocess.run(["podman", "logs", self.container(service)], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def wait_healthy(self, services: tuple[str, ...] = LASTING, seconds: float = HEALTHY_SECONDS) -> None:
        wait_for(lambda: all(self.health(service) == "healthy" for service in services), seconds, self.conditions)

    def conditions(self) -> dict[str, str]:
        return {service: self.health(service) for service in LASTING}

    def health(self, service: str) -> str:
        """Return `healthy`, `unhealthy`, or the status of a container that does not run.

        The check of the file is run now: podman leaves that to systemd's timers, which a container's machine may not have.
        """
        state = self.state(service)
        if not state or state["Status"] != "running":
            return state["Status"] if state else "absent"
        look = ["podman", "healthcheck", "run", self.container(service)]
        return "unhealthy" if subprocess.run(look, capture_output=True, check=False).returncode else "healthy"

    def state(self, service: str) -> dict[str, Any]:
        """Return podman's state of a service's container, {} where there is none."""
        done = subprocess.run(["podman", "inspect", self.container(service)], capture_output=True, text=True, check=False)
        return dict(json.loads(done.stdout)[0]["State"]) if done.returncode == 0 else {}

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def run_in(self, service: str, *command: str, stdin: str | None = None, check: bool = True) -> str:
        what = ["podman", "exec", *(["--interactive"] if stdin is not None else []), self.container(service), *command]
        done = subprocess.run(what, input=stdin, capture_output=True, text=True, timeout=600, check=False)
        assert not check or done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def kill(self, service: str) -> None:
        """Kill a service's container, as a machine that loses its power does; `podman-compose up` starts it again."""
        subprocess.run(["podman", "kill", "--signal", "KILL", self.container(service)], check=True, capture_output=True)

    def remove(self, service: str) -> None:
        subprocess.run(["podman", "rm", "--force", self.container(service)], check=True, capture_output=True)

    def start(self, service: str) -> None:
        subprocess.run(["podman", "start", self.container(service)], check=True, capture_output=True)

    def secret(self, name: str) -> str:
        return (self.folder / "secrets" / name).read_text().strip()

    @property
    def prefect_address(self) -> str:
        return f"http://127.0.0.1:{PREFECT_PORT}"

    @property
    def mlflow_address(self) -> str:
        return f"http://127.0.0.1:{MLFLOW_PORT}"

    def prefect(self, method: str, path: str, body: Any = None) -> Any:
        login = base64.b64encode(self.secret("prefect_auth_string").encode()).decode()
        headers = {"Authorization": f"Basic {login}"}
        address = f"{self.prefect_address}/api{path}"
        answer = httpx.request(method, address, json=body, headers=headers, timeout=60, trust_env=False)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def mlflow(self, method: str, path: str, body: Any = None) -> Any:
        address = f"{self.mlflow_address}/api/2.0/mlflow{path}"
        login = ("grpo", self.secret("mlflow_password"))
        answer = httpx.request(method, address, json=body, auth=login, timeout=60, trust_env=False)
        answer.raise_for_status()
        return answer.json()

    def start_run(self, deployment: str, *tags: str, **parameters: Any) -> str:
        """Start a deployment with the command `prefect` in a worker's container; return the id of its flow run."""
        pairs = [word for name, value in parameters.items() for word in ("--param", f"{name}={json.dumps(value)}")]
        named = [word for tag in tags for word in ("--tag", tag)]
        entry = ("python", "/app/entrypoint.py", "env", "COLUMNS=300")
        out = self.run_in("sweep-worker", *entry, "prefect", "deployment", "run", deployment, *pairs, *named)
        return next(line.rpartition(" ")[2] for line in out.splitlines() if "UUID" in line)

    def flow_run(self, run_id: str) -> Any:
        return self.prefect("GET", f"/flow_runs/{run_id}")

    def finished(self, run_id: str, seconds: float = 600) -> Any:
        return wait_for(lambda: (run := self.flow_run(run_id))["end_time"] and run, seconds, lambda: self.flow_run(run_id))

    def read(self, path: str) -> str:
        return self.run_in("sweep-worker", "cat", path)


def wait_for(condition: Callable[[], T], seconds: float, tell: Callable[[], object] = lambda: "") -> T:
    """Return the condition's first value that is true; an answer that does not come counts as none."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if value := condition():
                return value
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline, f"waited in vain for {seconds:.0f} s: {tell()}"
        time.sleep(POLL_SECONDS)
