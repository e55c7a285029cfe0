"""What a Prefect server needs before a run can be started: work pool, deployments, and an automation that finds dead runs."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from flows.stack.secret import prefect_client
from flows.stack.services import HEARTBEAT_SECONDS, POOL, RUNS_QUEUE, SWEEPS_QUEUE, Worker, stack_environment
from flows.stack.state import Stack
from grpo_core.errors import StackError

SILENCE_SECONDS = 10 * HEARTBEAT_SECONDS
"""A run without a heartbeat for so long has no process any more. A laptop that sleeps for longer counts as dead, too: the
server, which slept as well, may see the silence before it sees the next heartbeat."""
BUSY_SECONDS, BUSY_POLL_SECONDS = 30.0, 0.5
DEPLOYMENTS = (Path("prefect.yaml"), Path(__file__).with_name("prefect.yaml"))
"""Where the deployments are looked for: in the project's folder, then in the package, which has a link to the repository's."""
JOB_TEMPLATE = Path(__file__).with_name("job_template.json")
"""What of the start of a run's process can be set: nothing. docker-compose.yml makes its pool with the same file."""
REQUEST_SECONDS = 10.0
AUTOMATION = "runs without a heartbeat are crashed"


def set_up_prefect(stack: Stack) -> None:
    """Create the work pool or give it our job template, set its queues' limits, every deployment, and the automation.

    Raises:
        StackError: Prefect refuses; the message is its own.
    """
    try:
        with prefect_client(stack, REQUEST_SECONDS) as client:
            _set_job_template(client)
            _set_limits(client, stack.slots)
            file = next(file for file in DEPLOYMENTS if file.is_file())
            _prefect(stack, "--no-prompt", "deploy", "--all", "--prefect-file", str(file))
            _watch_heartbeats(client)
    except httpx.HTTPError as error:
        raise StackError(f"{stack.api}: cannot be set up ({error}); `grpo down`, then `grpo up`") from error


def forget_worker(stack: Stack, worker: Worker) -> None:
    """Remove a worker's record of an earlier start."""
    try:
        with prefect_client(stack, REQUEST_SECONDS) as client:
            client.delete(f"/work_pools/{POOL}/workers/{worker.worker_name}")
    except httpx.HTTPError as error:
        raise StackError(f"{stack.api}: does not answer ({error})") from error


def _set_job_template(client: httpx.Client) -> None:
    """Create the pool, or replace the template of the one that is there: Prefect's own has `command` and `env`."""
    template = {"base_job_template": json.loads(JOB_TEMPLATE.read_text())}
    if _ask(client, "GET", f"/work_pools/{POOL}").status_code == httpx.codes.NOT_FOUND:
        _ask(client, "POST", "/work_pools/", {"name": POOL, "type": "process", **template}).raise_for_status()
    else:
        _ask(client, "PATCH", f"/work_pools/{POOL}", template).raise_for_status()


def _set_limits(client: httpx.Client, slots: int) -> None:
    """Let `slots` runs take place at a time, and sweeps beside them: a pool's limit would count both, a queue's only its own.

    Nothing is created anew and the queue has its limit before the pool loses that of an earlier version: without one for a
    moment, runs that wait would all begin.
    """
    queues = f"/work_pools/{POOL}/queues"
    _ask(client, "PATCH", f"{queues}/{RUNS_QUEUE}", {"concurrency_limit": slots}).raise_for_status()
    if _ask(client, "GET", f"{queues}/{SWEEPS_QUEUE}").status_code == httpx.codes.NOT_FOUND:
        _ask(client, "POST", queues, {"name": SWEEPS_QUEUE, "description": "sweeps wait for runs; no limit"}).raise_for_status()
    _ask(client, "PATCH", f"/work_pools/{POOL}", {"concurrency_limit": None, "is_paused": False}).raise_for_status()


def _ask(client: httpx.Client, method: str, path: str, body: Any = None) -> httpx.Response:
    """Return the answer to a request; a server that has just started answers 503 while its database is locked."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        answer = client.request(method, path, json=body)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
            return answer
        time.sleep(BUSY_POLL_SECONDS)


def _prefect(stack: Stack, *arguments: str) -> None:
    command = [sys.executable, "-m", "prefect", *arguments]
    done = subprocess.run(command, env=stack_environment(stack), capture_output=True, text=True, check=False)
    if done.returncode:
        message = " ".join((done.stderr.strip() or done.stdout.strip()).split())[-400:]
        raise StackError(f"`prefect {' '.join(arguments)}` failed: {message}")


def _watch_heartbeats(client: httpx.Client) -> None:
    """A worker that is killed leaves its runs `Running` for ever, and they hold their slots."""
    states = [f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")]
    automation = {
        "name": AUTOMATION,
        "description": f"A run that has sent no heartbeat for {SILENCE_SECONDS} s has lost its process.",
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "after": ["prefect.flow-run.heartbeat"],
            "expect": ["prefect.flow-run.heartbeat", *states],
            "match": {"prefect.resource.id": ["prefect.flow-run.*"]},
            "for_each": ["prefect.resource.id"],
            "threshold": 1,
            "within": SILENCE_SECONDS,
        },
        "actions": [{"type": "change-flow-run-state", "state": "CRASHED", "message": f"no heartbeat for {SILENCE_SECONDS} s"}],
    }
    named = {"automations": {"name": {"any_": [AUTOMATION]}}}
    if not _ask(client, "POST", "/automations/filter", named).raise_for_status().json():
        _ask(client, "POST", "/automations/", automation).raise_for_status()
