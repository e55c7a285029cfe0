"""Health of a container of docker-compose.yml: `python -m flows.stack.health ROLE` ends with 0 where it works, else says why.

Nothing heavy is imported: it runs every few seconds.
"""

import base64
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

SECONDS = 4.0
PREFECT = "http://prefect-server:4200/api"
CONSUMERS_SILENT_MS = 60_000
"""Prefect's services read from Redis all the time, with or without events."""


def main(role: str) -> None:
    """Look at one role."""
    problem = CHECKS[role]()
    if problem:
        sys.exit(problem)


def _secret(name: str) -> str:
    return Path(os.environ.get("GRPO_SECRETS") or "/run/secrets", name).read_text(encoding="utf-8").strip()


def _prefect_server() -> str | None:
    """Health of the API, asked on loopback."""
    port = os.environ.get("GRPO_PREFECT_PORT") or "4200"
    _get("http://127.0.0.1:4200/api/health", {"Host": f"127.0.0.1:{port}"})
    return None


def _mlflow_server() -> str | None:
    port = os.environ.get("GRPO_MLFLOW_PORT") or "5000"
    _get("http://127.0.0.1:5000/health", {"Host": f"127.0.0.1:{port}"})
    return None


def _worker() -> str | None:
    """Prefect counts a worker as online as long as it reports."""
    name = os.environ["GRPO_WORKER"]
    workers = _get(f"{PREFECT}/work_pools/grpo/workers/filter", _login(), b"{}")
    mine = [worker["status"] for worker in workers if worker["name"] == name]
    return None if mine == ["ONLINE"] else f"Prefect says of worker {name}: {mine or 'unknown'}"


def _prefect_services() -> str | None:
    """The group that acts on automations has a consumer that has read of late."""
    idle = _idle_of("events", "actions")
    if idle is None:
        return "nobody reads the events for Prefect's automations"
    return None if idle < CONSUMERS_SILENT_MS else f"Prefect's services have not read for {idle} ms"


def _idle_of(stream: str, word: str) -> int | None:
    from redis import Redis

    with Redis(host="redis", password=_secret("redis_password"), socket_timeout=SECONDS, decode_responses=True) as redis:
        groups = [group["name"] for key in redis.scan_iter("*", _type="stream") for group in redis.xinfo_groups(key)]
    raise SystemExit(f"{stream} {word} {groups}")


def _login() -> dict[str, str]:
    login = base64.b64encode(_secret("prefect_auth_string").encode()).decode()
    return {"Authorization": f"Basic {login}", "Content-Type": "application/json"}


def _get(address: str, headers: dict[str, str], body: bytes | None = None) -> Any:
    request = urllib.request.Request(address, data=body, headers=headers)  # of our own servers
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        text = answer.read()
    return json.loads(text) if text[:1] in (b"{", b"[", b"t") else None


CHECKS = {
    "prefect-server": _prefect_server,
    "prefect-services": _prefect_services,
    "mlflow-server": _mlflow_server,
    "worker": _worker,
}

if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except (TimeoutError, OSError, ValueError, KeyError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
