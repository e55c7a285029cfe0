"""What a stack's Prefect is given, whoever runs it: work pool, queues, deployments, automations; and its runs under way."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from flows.stack.automations import AUTOMATIONS
from flows.stack.commands import POOL, RUNS_QUEUE, SWEEPS_QUEUE
from grpo_core.errors import StackError

DEPLOYMENTS = (Path("prefect.yaml"), Path(__file__).with_name("prefect.yaml"))
"""Where the deployments are looked for: in the project's folder, then in the package, which has a link to the repository's."""
JOB_TEMPLATE = Path(__file__).with_name("job_template.json")
"""What of the start of a run's process can be set: nothing."""
WAIT_SECONDS, REPORT_SECONDS, POLL_SECONDS = 600.0, 30.0, 2.0
UNDER_WAY = ("PENDING", "RUNNING", "CANCELLING")
WORKER_LABEL = "prefect.worker.name"
"""By which Prefect's own worker marks the runs that it has taken."""


def set_up(client: httpx.Client, slots: int | None, environment: Mapping[str, str], mark: str | None = None) -> None:
    """Create the work pool or give it our job template, set its queues' limits, every deployment, and the automations.

    Args:
        client: of Prefect's API.
        slots: runs at a time, whichever worker takes them; None where each worker has its own limit.
        environment: of the command `prefect`.
        mark: what the pool's description says at the end, for `await_set_up`.

    Raises:
        httpx.HTTPError: Prefect refuses or does not answer.
        StackError: the command fails; the message is its own.
    """
    _set_job_template(client)
    _set_limits(client, slots)
    _prefect(environment, "--no-prompt", "deploy", "--all", "--prefect-file", str(next(filter(Path.is_file, DEPLOYMENTS))))
    _set_automations(client)
    if mark is not None:
        client.patch(f"/work_pools/{POOL}", json={"description": mark}).raise_for_status()


def await_server(client: httpx.Client, report: Callable[[str], None]) -> None:
    """Wait until Prefect's server answers, which it does once its tables are there.

    Its background services do not recover from a start without them: no automation would ever be triggered.

    Raises:
        StackError: it did not answer in time.
    """
    _await(client, "/health", "Prefect's server", report)


def await_set_up(client: httpx.Client, mark: str, report: Callable[[str], None]) -> None:
    """Wait until `set_up` has ended with this mark; Prefect may not answer yet, either.

    A worker's container waits here rather than for the end of another, which an engine may not know, or not after a reboot.

    Args:
        client: of Prefect's API.
        mark: of the version that the worker is of.
        report: takes a line about the wait, now and then.

    Raises:
        StackError: it was not made in time.
    """
    what = f"the end of the service `setup` ({mark})"
    _await(client, f"/work_pools/{POOL}", what, report, lambda pool: pool.get("description") == mark)


def _await(
    client: httpx.Client, path: str, what: str, report: Callable[[str], None], is_right: Callable[[Any], bool] = lambda _: True
) -> None:
    began = reported = time.monotonic()
    while (problem := _problem_of(client, path, is_right)) is not None:
        now = time.monotonic()
        if now - began > WAIT_SECONDS:
            raise StackError(f"waited for {WAIT_SECONDS:.0f} s in vain for {what}: {problem}")
        if now - reported > REPORT_SECONDS:
            report(f"waiting for {what}: {problem}")
            reported = now
        time.sleep(POLL_SECONDS)


def _problem_of(client: httpx.Client, path: str, is_right: Callable[[Any], bool]) -> str | None:
    try:
        answer = client.get(path)
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    if answer.is_success:
        return None if is_right(answer.json()) else f"the work pool says {answer.json().get('description')!r}"
    return f"Prefect answers {answer.status_code}"


def crash_runs_of(client: httpx.Client, worker: str) -> int:
    """Call those runs crashed that a worker had taken before it started again; return how many there were.

    Only where the worker's end has ended all of its runs, as that of a container does. Runs of other workers stay as they are,
    dead or alive: their processes are on another host, and nothing here can tell.
    """
    crashed = {
        "type": "CRASHED",
        "name": "Crashed",
        "message": f"its worker {worker} was started again, and its process is gone",
    }
    lost = [run for run in runs_in(client, UNDER_WAY) if run.get("labels", {}).get(WORKER_LABEL) == worker]
    for run in lost:
        client.post(f"/flow_runs/{run['id']}/set_state", json={"state": crashed, "force": True}).raise_for_status()
    return len(lost)


def runs_in(client: httpx.Client, states: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the flow runs of the pool that are in one of these states."""
    wanted = {"flow_runs": {"state": {"type": {"any_": list(states)}}}, "work_pools": {"name": {"any_": [POOL]}}}
    return list(client.post("/flow_runs/filter", json=wanted).raise_for_status().json())


def _set_job_template(client: httpx.Client) -> None:
    """Create the pool, or replace the template of the one that is there: Prefect's own has `command` and `env`."""
    template = {"base_job_template": json.loads(JOB_TEMPLATE.read_text())}
    if client.get(f"/work_pools/{POOL}").status_code == httpx.codes.NOT_FOUND:
        client.post("/work_pools/", json={"name": POOL, "type": "process", **template}).raise_for_status()
    else:
        client.patch(f"/work_pools/{POOL}", json=template).raise_for_status()


def _set_limits(client: httpx.Client, slots: int | None) -> None:
    """Let `slots` runs take place at a time, and sweeps beside them: a pool's limit would count both, a queue's only its own.

    Nothing is created anew and the queue has its limit before the pool loses that of an earlier version: without one for a
    moment, runs that wait would all begin.
    """
    queues = f"/work_pools/{POOL}/queues"
    client.patch(f"{queues}/{RUNS_QUEUE}", json={"concurrency_limit": slots}).raise_for_status()
    if client.get(f"{queues}/{SWEEPS_QUEUE}").status_code == httpx.codes.NOT_FOUND:
        client.post(queues, json={"name": SWEEPS_QUEUE, "description": "sweeps wait for runs; no limit"}).raise_for_status()
    client.patch(f"/work_pools/{POOL}", json={"concurrency_limit": None, "is_paused": False}).raise_for_status()


def _prefect(environment: Mapping[str, str], *arguments: str) -> None:
    command = [sys.executable, "-m", "prefect", *arguments]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        message = " ".join((done.stderr.strip() or done.stdout.strip()).split())[-400:]
        raise StackError(f"`prefect {' '.join(arguments)}` failed: {message}")


def _set_automations(client: httpx.Client) -> None:
    """Create our automations; one that has our name gets what it does now, and stays switched off if somebody did that."""
    for automation in AUTOMATIONS:
        named = {"automations": {"name": {"any_": [automation["name"]]}}}
        known = client.post("/automations/filter", json=named).raise_for_status().json()
        if known:
            kept = {**automation, "enabled": known[0]["enabled"]}
            client.put(f"/automations/{known[0]['id']}", json=kept).raise_for_status()
        else:
            client.post("/automations/", json=automation).raise_for_status()
