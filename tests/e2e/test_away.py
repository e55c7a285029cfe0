"""Prefect's server dies in the middle of a flow: what is only shown there is given up in seconds, and the flow goes on."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from flows.stack.services import choose_port

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
FLOW = """
import os, signal, sys, time
from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from tasks.away import prefect_may_be_away

@task
def show(server):
    with prefect_may_be_away():
        artifact = create_progress_artifact(progress=0.0, key="progress")
    os.killpg(server, signal.SIGKILL)
    began = time.monotonic()
    with prefect_may_be_away():
        update_progress_artifact(artifact, progress=50.0)
    with prefect_may_be_away():
        create_markdown_artifact("text", key="report")
    print("SHOWN", time.monotonic() - began, flush=True)
    os._exit(0)

@flow
def shows(server: int):
    show(server)

shows(int(sys.argv[1]))
"""


def test_what_is_shown_waits_seconds_for_a_server_that_has_died(tmp_path: Path) -> None:
    port = choose_port("prefect", None, 4700)
    environment = {
        **os.environ,
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_CLIENT_MAX_RETRIES": "10",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONPATH": str(ROOT),
    }
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            while not _answers(f"http://127.0.0.1:{port}/api/health"):
                assert server.poll() is None
                time.sleep(0.2)
            command = [sys.executable, "-c", FLOW, str(server.pid)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    (shown,) = (line for line in done.stdout.splitlines() if line.startswith("SHOWN"))
    assert float(shown.split()[1]) < 30


def _answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=2).is_success
    except httpx.HTTPError:
        return False
