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
        ValueError: the environment holds no secret.
        KeyError: it does not name the hosts.
    """
    hosts = frozenset(os.environ[HOSTS_VARIABLE].split(","))
    if not PREFECT_SERVER_API_AUTH_STRING.value():
        raise ValueError("PREFECT_SERVER_API_AUTH_STRING: is not set; a Prefect server without a secret runs anybody's code")
    return guarded(create_prefect(), hosts)


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
    is_for_us = len(named) == 1 and named[0].lower() in hosts
    return is_for_us and len(origins) <= 1 and all(origin.lower().partition("://")[2] in hosts for origin in origins)
