"""Prefect's server behind a guard: requests for another host, or from a page of another origin, are refused.

Prefect itself answers any `Host` and any `Origin`. A secret (`PREFECT_SERVER_API_AUTH_STRING`) keeps strangers out of the API;
the guard also keeps them from the UI, the health routes and the WebSockets: a page that resolves its own name to 127.0.0.1
(DNS rebinding) sends that name as the host, and a page on another site its own address as the origin. Prefect's bare
"Unauthorized" becomes a message that names the remedy; its clients print it.
"""

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS_VARIABLE = "GRPO_PREFECT_HOSTS"
"""Environment variable of the server: `host:port` of each address that it answers to, separated by commas."""
REMEDY_VARIABLE = "GRPO_PREFECT_REMEDY"
"""Environment variable of the server: what somebody without its secret should do."""
USUAL_REMEDY = "set PREFECT_API_AUTH_STRING to the secret with which it was started"
FACTORY = "flows.stack.prefect_app:create_app"
"""What uvicorn starts: `uvicorn --factory flows.stack.prefect_app:create_app`."""


def loopback_hosts(port: int) -> str:
    """Return the value of the variable for a server that listens on a port of this machine alone."""
    return f"127.0.0.1:{port},localhost:{port}"


def create_app() -> "ASGIApp":
    """Return Prefect's server, guarded.

    Raises:
        ValueError: the environment does not name the hosts, or holds no secret.
    """
    from prefect.server.api.server import create_app as create_prefect
    from prefect.settings import PREFECT_SERVER_API_AUTH_STRING

    hosts = frozenset(host.strip().lower() for host in os.environ.get(HOSTS_VARIABLE, "").split(",") if host.strip())
    if not hosts:
        raise ValueError(f"{HOSTS_VARIABLE}: is not set; name each `host:port` at which this server is reached")
    if not PREFECT_SERVER_API_AUTH_STRING.value():
        raise ValueError("PREFECT_SERVER_API_AUTH_STRING: is not set; a Prefect server without a secret runs anybody's code")
    return guarded(create_prefect(), hosts, os.environ.get(REMEDY_VARIABLE) or USUAL_REMEDY)


def guarded(app: "ASGIApp", hosts: frozenset[str], remedy: str = USUAL_REMEDY) -> "ASGIApp":
    """Return an application that answers 403 unless the host is one of `hosts` and the origin, if any, is one of theirs.

    Args:
        app: what is guarded.
        hosts: `host:port` of each address of the application, in lower case.
        remedy: named in each 401 of the application.
    """

    async def guard(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] not in ("http", "websocket") or _is_ours(scope, hosts):
            await app(scope, receive, _naming(remedy, send))
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"refused: unknown Host or foreign Origin\n"})
        else:
            await receive()  # the handshake; closing before it is accepted is answered with 403
            await send({"type": "websocket.close", "code": 1008})

    return guard


def _naming(remedy: str, send: "Send") -> "Send":
    """Return a `send` that puts the remedy into the body of a 401, in the form in which Prefect's clients print it."""
    body = json.dumps({"exception_message": f"Unauthorized: this Prefect server asks for its secret; {remedy}"}).encode()
    replaced = False

    async def send_naming(message: "Message") -> None:
        nonlocal replaced
        if message["type"] == "http.response.start" and message["status"] == 401:
            replaced = True
            kept = [header for header in message["headers"] if header[0].lower() not in (b"content-length", b"content-type")]
            headers = [*kept, (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({**message, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        elif not replaced:
            await send(message)

    return send_naming


def _is_ours(scope: "Scope", hosts: frozenset[str]) -> bool:
    named = _values(scope, b"host")
    origins = _values(scope, b"origin")
    if len(named) != 1 or named[0] not in hosts or len(origins) > 1:
        return False
    return not origins or origins[0].partition("://")[2] in hosts


def _values(scope: "Scope", name: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for key, value in scope["headers"] if key.lower() == name]
