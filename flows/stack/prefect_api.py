"""What the stack's Prefect is asked for: work pool, deployments and an automation that finds dead runs; then its flow runs."""

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil

from flows.stack.processes import marked_processes, send_signal
from flows.stack.services import HEARTBEAT_SECONDS, POOL, RUNS_QUEUE, SWEEPS_QUEUE, Worker, mark, stack_environment
from flows.stack.state import Stack, prefect_client
from grpo_core.errors import StackError
from grpo_core.machine.process_id import ProcessId
from tasks.process.context import FLOW_RUN_VARIABLE

SILENCE_SECONDS = 10 * HEARTBEAT_SECONDS
"""A run without a heartbeat for so long has no process any more. A laptop that sleeps for longer counts as dead, too: the
server, which slept as well, may see the silence before it sees the next heartbeat."""
STARTING_PAUSES = (0.5,) * 60
"""Seconds between the attempts at a request to a server that has just started: its database may be locked for long."""
DEPLOYMENTS = (Path("prefect.yaml"), Path(__file__).with_name("prefect.yaml"))
"""Where the deployments are looked for: in the project's folder, then in the package, which has a link to the repository's."""
JOB_TEMPLATE = Path(__file__).with_name("job_template.json")
"""What of the start of a run's process can be set: nothing. docker-compose.yml makes its pool with the same file."""
REQUEST_SECONDS = 10.0
AUTOMATION = "runs without a heartbeat are crashed"
UNDER_WAY = ("PENDING", "RUNNING", "CANCELLING")
WAITING = ("SCHEDULED",)


def set_up_prefect(stack: Stack) -> None:
    """Create the work pool or give it our job template, set its queues' limits, every deployment, and the automation.

    Raises:
        StackError: Prefect refuses; the message is its own.
    """
    try:
        with prefect_client(stack, REQUEST_SECONDS, STARTING_PAUSES) as client:
            _set_job_template(client)
            _set_limits(client, stack.slots)
            _prefect(stack, "--no-prompt", "deploy", "--all", "--prefect-file", str(next(filter(Path.is_file, DEPLOYMENTS))))
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
    if client.get(f"/work_pools/{POOL}").status_code == httpx.codes.NOT_FOUND:
        client.post("/work_pools/", json={"name": POOL, "type": "process", **template}).raise_for_status()
    else:
        client.patch(f"/work_pools/{POOL}", json=template).raise_for_status()


def _set_limits(client: httpx.Client, slots: int) -> None:
    """Let `slots` runs take place at a time, and sweeps beside them: a pool's limit would count both, a queue's only its own.

    Nothing is created anew and the queue has its limit before the pool loses that of an earlier version: without one for a
    moment, runs that wait would all begin.
    """
    queues = f"/work_pools/{POOL}/queues"
    client.patch(f"{queues}/{RUNS_QUEUE}", json={"concurrency_limit": slots}).raise_for_status()
    if client.get(f"{queues}/{SWEEPS_QUEUE}").status_code == httpx.codes.NOT_FOUND:
        client.post(queues, json={"name": SWEEPS_QUEUE, "description": "sweeps wait for runs; no limit"}).raise_for_status()
    client.patch(f"/work_pools/{POOL}", json={"concurrency_limit": None, "is_paused": False}).raise_for_status()


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
    if not client.post("/automations/filter", json=named).raise_for_status().json():
        client.post("/automations/", json=automation).raise_for_status()


def count_flow_runs(stack: Stack) -> Counter[str] | None:
    """Return how many runs of the pool there are in each state that is not final; None while the API is away."""
    with contextlib.suppress(httpx.HTTPError, ValueError), prefect_client(stack) as client:
        return Counter(run["state_type"] for run in _runs(client, (*UNDER_WAY, *WAITING)))
    return None


def pause_pool(stack: Stack) -> None:
    """Let no waiting run begin, if Prefect answers."""
    with contextlib.suppress(httpx.HTTPError), prefect_client(stack) as client:
        client.patch(f"/work_pools/{POOL}", json={"is_paused": True})


def stop_runs(stack: Stack) -> int:
    """Ask every run under way to stop, and the processes of those that Prefect cannot cancel; return how many runs there were.

    A run process that gets SIGTERM stops as a cancelled one does; only its state in Prefect is another.
    """
    accepted = _cancel(stack)
    processes = run_processes(stack)
    orphaned = {run for run in processes.values() if not accepted.get(run)}
    numbers = {process.pid for process, run in processes.items() if run in orphaned}
    first = [process for process in processes if process.pid in numbers and _parent(process) not in numbers]
    send_signal(first, signal.SIGTERM)
    return len(accepted.keys() | orphaned)


def settle_lost_runs(stack: Stack) -> int:
    """Call those runs crashed that Prefect thinks are under way and that have no process; return how many there were.

    A run whose server or worker was killed stays `Running`, and holds its place under the pool's limit.
    """
    alive, lost = set(run_processes(stack).values()), 0
    crashed = {"type": "CRASHED", "name": "Crashed", "message": "its process was gone when the stack was started"}
    with contextlib.suppress(httpx.HTTPError, ValueError), prefect_client(stack) as client:
        for run in _runs(client, UNDER_WAY):
            if run["id"] not in alive:
                client.post(f"/flow_runs/{run['id']}/set_state", json={"state": crashed, "force": True})
                lost += 1
    return lost


def run_processes(stack: Stack) -> dict[ProcessId, str]:
    """Return the live processes that belong to runs of the stack, each with the id of its flow run.

    They are in sessions of their own and outlive the worker; a training may outlive its flow's process, too.
    """
    return {
        process: variables[FLOW_RUN_VARIABLE]
        for process, variables in marked_processes(mark(stack)).items()
        if FLOW_RUN_VARIABLE in variables
    }


def is_flow(process: ProcessId) -> bool:
    """Return whether a process is a flow's own, not one that the flow has started."""
    with contextlib.suppress(psutil.Error):
        return any(word.startswith("prefect") for word in psutil.Process(process.pid).cmdline())
    return False


def _cancel(stack: Stack) -> dict[str, bool]:
    """Cancel the runs under way through the API; return {id: whether that was accepted}."""
    accepted: dict[str, bool] = {}
    wanted = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    with contextlib.suppress(httpx.HTTPError, ValueError), prefect_client(stack) as client:
        for run in _runs(client, UNDER_WAY):
            accepted[run["id"]] = False
            with contextlib.suppress(httpx.HTTPError, ValueError):
                answer = client.post(f"/flow_runs/{run['id']}/set_state", json=wanted).raise_for_status().json()
                accepted[run["id"]] = answer["status"] == "ACCEPT" or run["state_type"] == "CANCELLING"
    return accepted


def _runs(client: httpx.Client, states: tuple[str, ...]) -> list[dict[str, Any]]:
    wanted = {"flow_runs": {"state": {"type": {"any_": list(states)}}}, "work_pools": {"name": {"any_": [POOL]}}}
    return list(client.post("/flow_runs/filter", json=wanted).raise_for_status().json())


def _parent(process: ProcessId) -> int | None:
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(process.pid).ppid())
    return None
