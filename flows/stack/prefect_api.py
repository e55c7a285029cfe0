"""What the stack's Prefect is asked for: to be set up (`prefect_setup`), and about its flow runs."""

import contextlib
import signal
from collections import Counter

import httpx
import psutil

from flows.stack.commands import POOL
from flows.stack.prefect_setup import UNDER_WAY, runs_in, set_up
from flows.stack.processes import marked_processes, send_signal
from flows.stack.services import Worker, mark, stack_environment
from flows.stack.state import Stack, prefect_client
from grpo_core.errors import StackError
from grpo_core.machine.process_id import ProcessId
from tasks.process.context import FLOW_RUN_VARIABLE

STARTING_PAUSES = (0.5,) * 60
"""Seconds between the attempts at a request to a server that has just started: its database may be locked for long."""
REQUEST_SECONDS = 10.0
WAITING = ("SCHEDULED",)


def set_up_prefect(stack: Stack) -> None:
    """Create the work pool or give it our job template, set its queues' limits, every deployment, and the automations.

    Raises:
        StackError: Prefect refuses; the message is its own.
    """
    try:
        with prefect_client(stack, REQUEST_SECONDS, STARTING_PAUSES) as client:
            set_up(client, stack.slots, stack_environment(stack))
    except httpx.HTTPError as error:
        raise StackError(f"{stack.api}: cannot be set up ({error}); `grpo down`, then `grpo up`") from error


def forget_worker(stack: Stack, worker: Worker) -> None:
    """Remove a worker's record of an earlier start."""
    try:
        with prefect_client(stack, REQUEST_SECONDS) as client:
            client.delete(f"/work_pools/{POOL}/workers/{worker.worker_name}")
    except httpx.HTTPError as error:
        raise StackError(f"{stack.api}: does not answer ({error})") from error


def count_flow_runs(stack: Stack) -> Counter[str] | None:
    """Return how many runs of the pool there are in each state that is not final; None while the API is away."""
    with contextlib.suppress(httpx.HTTPError, ValueError), prefect_client(stack) as client:
        return Counter(run["state_type"] for run in runs_in(client, (*UNDER_WAY, *WAITING)))
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
        for run in runs_in(client, UNDER_WAY):
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
        for run in runs_in(client, UNDER_WAY):
            accepted[run["id"]] = False
            with contextlib.suppress(httpx.HTTPError, ValueError):
                answer = client.post(f"/flow_runs/{run['id']}/set_state", json=wanted).raise_for_status().json()
                accepted[run["id"]] = answer["status"] == "ACCEPT" or run["state_type"] == "CANCELLING"
    return accepted


def _parent(process: ProcessId) -> int | None:
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(process.pid).ppid())
    return None
