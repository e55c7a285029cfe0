"""Ports of the stack: given ones must be free, others are chosen; whoever holds a busy one is named."""

import contextlib
import socket
from collections.abc import Mapping

import psutil

from grpo_core.errors import StackError

HOST = "127.0.0.1"
SEARCHED = 50
"""How many ports above the usual one are tried."""


def choose_port(name: str, given: int | None, usual: int) -> int:
    """Return the given port, else the first free one from the usual one on.

    Raises:
        StackError: the given port is busy, or no port is free.
    """
    if given is not None:
        if not is_free(given):
            raise StackError(
                f"--{name}-port {given}: is in use{_holder(given)}; give another, or leave it out to have one chosen"
            )
        return given
    free = next((port for port in range(usual, usual + SEARCHED) if is_free(port)), None)
    if free is None:
        raise StackError(f"--{name}-port: none of {usual} to {usual + SEARCHED - 1} is free; give one")
    return free


def is_free(port: int) -> bool:
    """Return whether a server could listen on a loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def past_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep requests to this machine, and the secret in them, away from the user's proxy."""
    names = ("NO_PROXY", "no_proxy")
    return {name: ",".join(filter(None, [environment.get(name), HOST])) for name in names}


def listens(pid: int, port: int) -> bool:
    """Return whether a process of this user listens on a port."""
    with contextlib.suppress(psutil.Error):
        connections = psutil.Process(pid).net_connections(kind="tcp")
        return any(found.status == psutil.CONN_LISTEN and found.laddr.port == port for found in connections)
    return False


def _holder(port: int) -> str:
    """Name the process that listens on a port, as far as this user may know."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    return ""
