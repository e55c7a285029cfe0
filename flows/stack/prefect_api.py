"""What a stack's Prefect is given and asked for, whoever runs it: pool, queues, deployments, automations; and its flow runs."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from flows.stack.commands import HEARTBEAT_SECONDS, POOL, RUNS_QUEUE, SWEEPS_QUEUE
from grpo_core.errors import StackError

DEPLOYMENTS = (Path("prefect.yaml"), Path(__file__).with_name("prefect.yaml"))
"""Where the deployments are looked for: in the project's folder, then in the package, which has a link to the repository's."""
JOB_TEMPLATE = Path(__file__).with_name("job_template.json")
"""What of the start of a run's process can be set: nothing."""
UNDER_WAY = ("PENDING", "RUNNING", "CANCELLING")
WORKER_LABEL = "prefect.worker.name"
"""By which Prefect's own worker marks the runs that it has taken."""


def set_up(client: httpx.Client, slots: int | None, environment: Mapping[str, str]) -> None:
    """Create the work pool or give it our job template, set its queues' limits, every deployment, and the automations.

    Args:
        client: of Prefect's API.
        slots: runs at a time, whichever worker takes them; None where each worker has its own limit.
        environment: of the command `prefect`.

    Raises:
        StackError: the command fails; the message is its own.
        httpx.HTTPError: Prefect refuses or does not answer.
    """
    _set_pool(client, slots)
    _deploy(environment)
    _set_automations(client)


def count_flow_runs(client: httpx.Client) -> Counter[str]:
    """Return how many runs of the pool there are in each state that is not final.

    Raises:
        httpx.HTTPError: the API is away.
    """
    return Counter(run["state_type"] for run in _runs_in(client, (*UNDER_WAY, "SCHEDULED")))


def stop_runs(client: httpx.Client) -> tuple[int, int]:
    """Let no waiting run begin, and cancel those under way; return how many are cancelled and how many wait.

    A run without a worker notices it by itself.
    """
    client.patch(f"/work_pools/{POOL}", json={"is_paused": True}).raise_for_status()
    waiting = count_flow_runs(client)["SCHEDULED"]
    runs = _runs_in(client, UNDER_WAY)
    for run in runs:
        _set_state(client, run, {"type": "CANCELLING", "name": "Cancelling"}, force=False)
    return len(runs), waiting


def crash_runs(client: httpx.Client, is_lost: Callable[[dict[str, Any]], bool], why: str) -> int:
    """Call those runs crashed that Prefect thinks are under way and whose process is lost; return how many there were.

    A run whose server or worker was killed stays `Running`, and holds its place under the limit.
    """
    lost = [run for run in _runs_in(client, UNDER_WAY) if is_lost(run)]
    for run in lost:
        _set_state(client, run, {"type": "CRASHED", "name": "Crashed", "message": why}, force=True)
    return len(lost)


def _set_state(client: httpx.Client, run: Mapping[str, Any], state: Mapping[str, str], *, force: bool) -> None:
    client.post(f"/flow_runs/{run['id']}/set_state", json={"state": state, "force": force}).raise_for_status()


def _runs_in(client: httpx.Client, states: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the flow runs of the pool that are in one of these states."""
    wanted = {"flow_runs": {"state": {"type": {"any_": list(states)}}}, "work_pools": {"name": {"any_": [POOL]}}}
    return list(client.post("/flow_runs/filter", json=wanted).raise_for_status().json())


def _set_pool(client: httpx.Client, slots: int | None) -> None:
    """Create the pool or replace its template (Prefect's own has `command` and `env`), and limit the queue of the runs.

    Let `slots` runs take place at a time, and sweeps beside them: a pool's limit would count both, a queue's only its own.
    """
    pool, queues = f"/work_pools/{POOL}", f"/work_pools/{POOL}/queues"
    template = {"base_job_template": json.loads(JOB_TEMPLATE.read_text())}
    # Refused where there is one, which the requests after it change.
    client.post("/work_pools/", json={"name": POOL, "type": "process", **template})
    client.post(queues, json={"name": SWEEPS_QUEUE, "description": "sweeps wait for runs; no limit"})
    client.patch(f"{queues}/{RUNS_QUEUE}", json={"concurrency_limit": slots}).raise_for_status()
    client.patch(pool, json={**template, "is_paused": False}).raise_for_status()


def _deploy(environment: Mapping[str, str]) -> None:
    file = next(filter(Path.is_file, DEPLOYMENTS))
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"`prefect deploy --all` failed: {' '.join((done.stderr.strip() or done.stdout).split())[-400:]}")


def _set_automations(client: httpx.Client) -> None:
    """Create our automations; one that has our name gets what it does now, and stays switched off if somebody did that."""
    for automation in AUTOMATIONS:
        named = {"automations": {"name": {"any_": [automation["name"]]}}}
        known = client.post("/automations/filter", json=named).raise_for_status().json()
        method, place = ("PUT", known[0]["id"]) if known else ("POST", "")
        kept = {"enabled": known[0]["enabled"]} if known else {}
        client.request(method, f"/automations/{place}", json={**automation, **kept}).raise_for_status()


SILENCE_SECONDS = 10 * HEARTBEAT_SECONDS
"""A run without a heartbeat for so long has no process any more. A laptop that sleeps for longer counts as dead, too: the
server, which slept as well, may see the silence before it sees the next heartbeat."""
BUDGET_TAG = "stop-on-kl-budget"
"""Tag of flow runs that are cancelled when they cross their KL budget, though the rule in their configuration only warns."""
BUDGET_EVENT = "grpo.kl.budget"
_FINAL = ("Completed", "Failed", "Cancelled", "Crashed")

LOST_RUNS: dict[str, Any] = {
    # A worker that is killed leaves its runs `Running` for ever, and they hold their slots.
    "name": "runs without a heartbeat are crashed",
    "description": f"A run that has sent no heartbeat for {SILENCE_SECONDS} s has lost its process.",
    "trigger": {
        "type": "event",
        "posture": "Proactive",
        "after": ["prefect.flow-run.heartbeat"],
        "expect": ["prefect.flow-run.heartbeat", *(f"prefect.flow-run.{state}" for state in _FINAL)],
        "match": {"prefect.resource.id": ["prefect.flow-run.*"]},
        "for_each": ["prefect.resource.id"],
        "threshold": 1,
        "within": SILENCE_SECONDS,
    },
    "actions": [{"type": "change-flow-run-state", "state": "CRASHED", "message": f"no heartbeat for {SILENCE_SECONDS} s"}],
}
OVER_BUDGET: dict[str, Any] = {
    "name": f"runs tagged {BUDGET_TAG} are cancelled when they cross their KL budget",
    "description": "The run finishes its step and checkpoints; `grpo/resume` continues it.",
    "trigger": {
        "type": "event",
        "posture": "Reactive",
        "expect": [BUDGET_EVENT],
        "match_related": {"prefect.resource.id": f"prefect.tag.{BUDGET_TAG}", "prefect.resource.role": "tag"},
        "for_each": ["prefect.resource.id"],
        "threshold": 1,
        "within": 0,
    },
    "actions": [{"type": "cancel-flow-run"}],
}
AUTOMATIONS = (LOST_RUNS, OVER_BUDGET)
