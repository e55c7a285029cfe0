"""Health of a container of docker-compose.yml: `python -m flows.stack.health ROLE` ends with 0 where it works, else says why.

Nothing heavy is imported: it runs every few seconds.
"""

import base64
import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

SECONDS = 4.0
PREFECT = "http://prefect-server:4200/api"
SILENT_SECONDS = 60.0
"""Prefect's services report every few seconds."""


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
    """They write into Redis when they were last alive."""
    from redis import Redis

    with Redis(host="redis", password=_secret("redis_password"), db=1, socket_timeout=SECONDS) as redis:
        newest = redis.zrange("prefect:workers", -1, -1, withscores=True)
    silent = time.time() - newest[0][1] if newest else float("inf")
    return None if silent < SILENT_SECONDS else f"Prefect's services were last alive {silent:.0f} s ago"


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
