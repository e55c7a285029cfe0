"""The flow runs of a stack, through Prefect's API."""

from collections import Counter

import httpx

from flows.stack.services import POOL
from flows.stack.state import Stack

UNDER_WAY = ("PENDING", "RUNNING", "CANCELLING")
WAITING = ("SCHEDULED",)


def count_runs(stack: Stack) -> Counter[str]:
    """Return how many runs of the pool there are in each state that is not final; nothing while the API is away."""
    return Counter(run["state_type"] for run in _runs(stack, (*UNDER_WAY, *WAITING)))


def cancel_runs(stack: Stack) -> int:
    """Ask every run of the pool that is under way to stop; return how many there were."""
    runs = _runs(stack, UNDER_WAY)
    with _client(stack) as client:
        for run in runs:
            client.post(f"/flow_runs/{run['id']}/set_state", json={"state": {"type": "CANCELLING", "name": "Cancelling"}})
    return len(runs)


def _runs(stack: Stack, states: tuple[str, ...]) -> list[dict[str, str]]:
    wanted = {"flow_runs": {"state": {"type": {"any_": list(states)}}}, "work_pools": {"name": {"any_": [POOL]}}}
    try:
        with _client(stack) as client:
            found: list[dict[str, str]] = client.post("/flow_runs/filter", json=wanted).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return []
    return found


def _client(stack: Stack) -> httpx.Client:
    return httpx.Client(base_url=stack.api, timeout=10)
