"""A Prefect server as its owner finds it, and all of it that a stranger must not change."""

import base64
import time
from dataclasses import dataclass
from typing import Any

import httpx

SECONDS = 120.0
POOL, FLOW, DEPLOYMENT, VARIABLE = "grpo", "grpo", "train", "security"


@dataclass(frozen=True, kw_only=True)
class Door:
    name: str
    address: str
    """`http://127.0.0.1:<port>`."""
    secret: str
    """What its owner's clients send."""

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Ask as the owner does; a server that is busy says 503 and is asked again."""
        headers, deadline = authorization(self.secret), time.monotonic() + SECONDS
        while True:
            answer = httpx.request(method, self.address + path, json=body, headers=headers, timeout=SECONDS, trust_env=False)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                return answer
            time.sleep(1)

    def read(self, method: str, path: str, body: Any = None) -> Any:
        return self.ask(method, path, body).raise_for_status().json()

    def contents(self) -> dict[str, Any]:
        """Return what a stranger could want to change: runs, deployments, pools, variables, automations, events."""
        kept = ("name", "entrypoint", "path", "pull_steps", "job_variables", "parameters", "enforce_parameter_schema")
        deployments = self.read("POST", "/api/deployments/filter", {})
        pools = self.read("POST", "/api/work_pools/filter", {})
        named = {"filter": {"event": {"prefix": ["security."]}}}
        return {
            "runs": sorted(run["id"] for run in self.read("POST", "/api/flow_runs/filter", {})),
            "deployments": {deployment["id"]: [deployment[key] for key in kept] for deployment in deployments},
            "pools": {pool["name"]: (pool["base_job_template"], pool["is_paused"]) for pool in pools},
            "variables": {found["name"]: found["value"] for found in self.read("POST", "/api/variables/filter", {})},
            "automations": sorted(found["name"] for found in self.read("POST", "/api/automations/filter", {})),
            "events": [event["event"] for event in self.read("POST", "/api/events/filter", named)["events"]],
        }

    def furnish(self) -> None:
        """Make a pool, a deployment and a variable where there are none yet."""
        self.ask("POST", "/api/work_pools/", {"name": POOL, "type": "process"})
        flow = self.read("POST", "/api/flows/", {"name": FLOW})
        if self.ask("GET", f"/api/deployments/name/{FLOW}/{DEPLOYMENT}").status_code == httpx.codes.NOT_FOUND:
            self.read("POST", "/api/deployments/", {"name": DEPLOYMENT, "flow_id": flow["id"], "work_pool_name": POOL})
        self.ask("POST", "/api/variables/", {"name": VARIABLE, "value": "the owner's"})


def authorization(secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()} if secret else {}
