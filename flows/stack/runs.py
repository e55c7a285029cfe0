"""The flow runs of a stack: what Prefect's API knows of them, and their processes."""

import contextlib
import signal
from collections import Counter
from typing import Any

import httpx
import psutil

from flows.stack.processes import ProcessId, marked_processes, send_signal
from flows.stack.secret import prefect_client
from flows.stack.services import POOL, mark
from flows.stack.state import Stack
from tasks.process.context import FLOW_RUN_VARIABLE

UNDER_WAY = ("PENDING", "RUNNING", "CANCELLING")
WAITING = ("SCHEDULED",)


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
    for process in processes:
        if process.pid in numbers and _parent(process) not in numbers:
            send_signal([process], signal.SIGTERM)
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
    marked = marked_processes(mark(stack))
    return {process: variables[FLOW_RUN_VARIABLE] for process, variables in marked.items() if FLOW_RUN_VARIABLE in variables}


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
    found: list[dict[str, Any]] = client.post("/flow_runs/filter", json=wanted).raise_for_status().json()
    return found


def _parent(process: ProcessId) -> int | None:
    with contextlib.suppress(psutil.Error):
        parent: int = psutil.Process(process.pid).ppid()
        return parent
    return None
