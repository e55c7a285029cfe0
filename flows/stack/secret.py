"""The secret of a stack's Prefect: made once, kept for its owner alone, sent with every request of ours and to nobody else."""

import base64
import os
import re
import secrets
import stat
import time
from pathlib import Path

import httpx

from flows.stack.state import Stack
from grpo_core.errors import StackError
from grpo_core.machine.disk import private_folder, write_private

BUSY_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Seconds between the attempts at a request that Prefect is too busy to answer."""
REQUEST_SECONDS = 3.0
ACCEPTED = re.compile(r"[!-~]{16,}")
"""Printable ASCII without spaces: it travels in headers and is typed into a browser."""


def secret_file(folder: Path) -> Path:
    """Return where the secret of the stack in a folder is."""
    return folder / "prefect" / "secret"


def read_secret(folder: Path) -> str | None:
    """Return the secret of the stack in a folder; None if there is none, or one that others could have read or changed."""
    try:
        descriptor = os.open(secret_file(folder), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            return None
        secret = file.read().strip()
    return secret if ACCEPTED.fullmatch(secret) else None


def ensure_secret(folder: Path) -> None:
    """Make the secret of the stack in a folder, unless there is one: a browser in which it was typed stays let in.

    Raises:
        StackError: it cannot be written.
    """
    if read_secret(folder) is not None:
        return
    try:
        private_folder(folder / "prefect")
        write_private(secret_file(folder), secrets.token_urlsafe(32) + "\n")
    except OSError as error:
        raise StackError(f"{secret_file(folder)}: cannot be written ({error})") from error


def prefect_client(stack: Stack, timeout: float = REQUEST_SECONDS) -> httpx.Client:
    """Return a client of the stack's Prefect API that carries its secret.

    Args:
        stack: whose API.
        timeout: of each request, in seconds.
    """
    # trust_env: the secret of a server on this machine is nothing for a proxy.
    headers = secret_headers(read_secret(stack.folder))
    return httpx.Client(base_url=stack.api, timeout=timeout, headers=headers, trust_env=False, transport=_RetryingTransport())


class _RetryingTransport(httpx.HTTPTransport):
    """Repeats a request that Prefect answers with 503, as it does while another connection locks its SQLite file."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, again after each of `BUSY_PAUSES` as long as the answer is 503; return the last answer."""
        for pause in BUSY_PAUSES:
            response = super().handle_request(request)
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                return response
            response.close()
            time.sleep(pause)
        return super().handle_request(request)


def secret_headers(secret: str | None) -> dict[str, str]:
    """Return the headers that carry a secret to Prefect, none without one."""
    return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()} if secret else {}
