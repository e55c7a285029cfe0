"""Requests that would run a stranger's code, or read or change what is not a stranger's."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.security.doors import DEPLOYMENT, FLOW, POOL, VARIABLE, Door

SOCKETS = (
    "/api/events/in",
    "/api/events/out",
    "/api/logs/out",
    "/api/task_runs/subscriptions/scheduled",
    f"/api/work_pools/{POOL}/workers/connect",
)


@dataclass(frozen=True, kw_only=True)
class Attack:
    name: str
    method: str
    path: str
    body: Any = None


def event(name: str) -> dict[str, Any]:
    resource = {"prefect.resource.id": "security"}
    return {"event": name, "resource": resource, "occurred": datetime.now(UTC).isoformat(), "id": str(uuid4())}


def attacks(door: Door, canary: Path) -> list[Attack]:
    """Return the requests of somebody who knows every id; `canary` is a file that comes to be if one runs code."""
    deployment = door.read("GET", f"/api/deployments/name/{FLOW}/{DEPLOYMENT}")
    one = f"/api/deployments/{deployment['id']}"
    command = f"touch {canary}"
    python = canary.with_name("python")
    python.write_text(f"#!/bin/sh\ntouch {canary}\n")
    python.chmod(0o755)
    new = {"name": DEPLOYMENT, "flow_id": deployment["flow_id"], "work_pool_name": POOL}
    shell = {"prefect.deployments.steps.run_shell_script": {"script": command}}
    template = {"job_configuration": {"command": command}, "variables": {"properties": {}}}
    overrides = {"config": "sums_tiny_cpu", "overrides": {"training.python": str(python)}}
    return [
        Attack(name="job variable", method="POST", path=f"{one}/create_flow_run", body={"job_variables": {"command": command}}),
        Attack(name="training.python", method="POST", path=f"{one}/create_flow_run", body={"parameters": overrides}),
        Attack(name="pull steps", method="POST", path="/api/deployments/", body={**new, "name": "own", "pull_steps": [shell]}),
        Attack(name="entrypoint", method="POST", path="/api/deployments/", body={**new, "entrypoint": "evil.py:flow"}),
        Attack(name="flow run", method="POST", path="/api/flow_runs/", body={"flow_id": deployment["flow_id"]}),
        Attack(name="pool", method="PATCH", path=f"/api/work_pools/{POOL}", body={"base_job_template": template}),
        Attack(name="deployment", method="PATCH", path=one, body={"job_variables": {"command": command}}),
        Attack(name="variable", method="PATCH", path=f"/api/variables/name/{VARIABLE}", body={"value": "a stranger's"}),
        Attack(name="new variable", method="POST", path="/api/variables/", body={"name": "strange", "value": "a stranger's"}),
        Attack(name="event", method="POST", path="/api/events", body=[event("security.posted")]),
        Attack(name="delete", method="DELETE", path=one),
        Attack(name="runs", method="POST", path="/api/flow_runs/filter", body={}),
        Attack(name="pools", method="POST", path="/api/work_pools/filter", body={}),
        Attack(name="read", method="GET", path=f"/api/deployments/name/{FLOW}/{DEPLOYMENT}"),
        Attack(name="settings", method="GET", path="/api/admin/settings"),
    ]
