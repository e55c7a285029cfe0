"""The Prefect server that the user's settings name: whether it can be used, and which of the settings names it."""

import os
from typing import NoReturn

import httpx
from prefect import get_client
from prefect.context import get_settings_context
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED

from grpo_core.errors import MAX_FAULT_CHARACTERS, StackError, cause

REFUSED_LOGIN = (401, 403)
EMBEDDED = "then each command starts an embedded Prefect"


def require_chosen_server() -> None:
    """Ask the chosen server for its version.

    Raises:
        StackError: none is named, or it cannot be reached, refuses the login, is no Prefect, or is of another major version.
    """
    try:
        with get_client(sync_client=True) as client:
            client.raise_for_api_version_mismatch()
    except Exception as error:  # noqa: BLE001  (Prefect wraps some of httpx's errors, and raises its own)
        _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    if not PREFECT_API_URL.value():
        raise StackError(
            "Prefect: no server is named, and embedded ones are switched off "
            f"({PREFECT_SERVER_EPHEMERAL_ENABLED.name} is false); set {PREFECT_API_URL.name}, or switch them on"
        )
    where, without = _naming_setting()
    reason, remedy = error.__cause__ or error, "start it"
    if isinstance(reason, httpx.HTTPStatusError) and reason.response.status_code in REFUSED_LOGIN:
        what = f"refuses the login ({cause(reason, MAX_FAULT_CHARACTERS)})"
        remedy = "set PREFECT_API_AUTH_STRING (of a server of your own) or PREFECT_API_KEY (of Prefect Cloud)"
    elif isinstance(reason, httpx.TransportError):
        what = f"cannot be reached ({type(reason).__name__}: {cause(reason)})"
    elif isinstance(reason, httpx.HTTPStatusError | ValueError) and reason is not error:
        what, remedy = f"does not answer as a Prefect server does ({cause(reason)})", "correct the address"
    else:  # another version
        what, remedy = f"cannot be used ({cause(error)})", "install the same version here"
    raise StackError(f"Prefect at {PREFECT_API_URL.value()}, which {where} names, {what}; {remedy}, or {without}: {EMBEDDED}")


def _naming_setting() -> tuple[str, str]:
    """Return what names the server, and how it stops to."""
    name, profile = PREFECT_API_URL.name, get_settings_context().profile
    if name in os.environ:
        return f"the environment variable {name}", f"unset {name}"
    if PREFECT_API_URL in profile.settings:
        return f"the Prefect profile {profile.name!r}", f"run `prefect config unset {name}`"
    return "a settings file of this folder (prefect.toml, pyproject.toml or .env)", "remove the address from it"
