"""Prefect's server behind a guard: requests for another host, or from a page of another origin, are refused.

Prefect itself answers any `Host` and any `Origin`. A secret (`PREFECT_SERVER_API_AUTH_STRING`) keeps strangers out of the API;
the guard also keeps them from the UI, the health routes and the WebSockets: a page that resolves its own name to 127.0.0.1
(DNS rebinding) sends that name as the host, and a page on another site its own address as the origin.
"""

import os

from prefect.server.api.server import create_app as create_prefect
from prefect.settings import PREFECT_SERVER_API_AUTH_STRING
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.stack.commands import HOSTS_VARIABLE


def create_app() -> ASGIApp:
    """Return Prefect's server, guarded.

    Raises:
        ValueError: the environment does not name the hosts, or holds no secret.
    """
    hosts = os.environ.get(HOSTS_VARIABLE)
    if not hosts:
        raise ValueError(f"{HOSTS_VARIABLE}: is not set; name each `host:port` at which this server is reached")
    if not PREFECT_SERVER_API_AUTH_STRING.value():
        raise ValueError("PREFECT_SERVER_API_AUTH_STRING: is not set; a Prefect server without a secret runs anybody's code")
    return guarded(create_prefect(), frozenset(hosts.split(",")))


def guarded(app: ASGIApp, hosts: frozenset[str]) -> ASGIApp:
    """Return an application that answers 403 unless the host is one of `hosts` and the origin, if any, is one of theirs.

    Args:
        app: what is guarded.
        hosts: `host:port` of each address of the application, in lower case.
    """

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_ours(Headers(scope=scope), hosts):
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse("refused: unknown Host or foreign Origin\n", 403)(scope, receive, send)
        else:
            await receive()  # the handshake; closing before it is accepted is answered with 403
            await send({"type": "websocket.close", "code": 1008})

    return guard


def _is_ours(headers: Headers, hosts: frozenset[str]) -> bool:
    named, origins = headers.getlist("host"), headers.getlist("origin")
    if len(named) != 1 or named[0].lower() not in hosts or len(origins) > 1:
        return False
    return not origins or origins[0].lower().partition("://")[2] in hosts
