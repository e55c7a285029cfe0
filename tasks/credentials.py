"""Credentials of the tracking server: MLflow's own variables carry them, and what a run keeps of an address holds none."""

import os
from urllib.parse import unquote, urlsplit

from grpo_core.errors import ConfigError, TrackingError
from grpo_core.redaction import HIDDEN, kept_uri

VARIABLE = "MLFLOW_TRACKING_URI"
USER_VARIABLE, PASSWORD_VARIABLE = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
OWNER_VARIABLE = "GRPO_TRACKING_CREDENTIALS_OF"
"""Set where the two above come from an address: the server to which they may be shown."""


def move_credentials() -> None:
    """Put user and password of a server's address in MLFLOW_TRACKING_URI into the variables that MLflow has for them.

    What starts from here on, in this process and its children, finds the bare address.

    Raises:
        ConfigError: a name without a password, which those variables cannot carry.
    """
    uri = os.environ.get(VARIABLE, "")
    if not uri.lower().startswith(("http://", "https://")) or kept_uri(uri) == uri:
        return
    server = urlsplit(uri).netloc
    user, _, password = server.rpartition("@")[0].partition(":")
    if "@" in uri.partition(server)[2]:  # what looked like the server's name ends inside the password
        raise ConfigError(
            f"{VARIABLE} {kept_uri(uri)}: holds a password in which / ? or # is not percent-encoded; write %2F %3F %23 and %40 "
            f"for / ? # and @, or set {USER_VARIABLE} and {PASSWORD_VARIABLE}"
        )
    if user and not password:
        raise ConfigError(
            f"{VARIABLE} {kept_uri(uri)}: holds a user or a token without a password; take it out and set {USER_VARIABLE} and "
            f"{PASSWORD_VARIABLE}, or MLFLOW_TRACKING_TOKEN"
        )
    os.environ[VARIABLE] = kept_uri(uri)
    if user:
        os.environ[USER_VARIABLE], os.environ[PASSWORD_VARIABLE] = unquote(user), unquote(password)
        os.environ[OWNER_VARIABLE] = urlsplit(uri).netloc.rpartition("@")[2]


def environment_uri() -> str | None:
    """Return the address in MLFLOW_TRACKING_URI as it may be kept; None where there is none."""
    move_credentials()
    uri = os.environ.get(VARIABLE)
    return kept_uri(uri) if uri else None


def usable_uri(kept: str) -> str:
    """Return an address with which a connection can be made: that in MLFLOW_TRACKING_URI where a kept one stands for it.

    Raises:
        TrackingError: its password is not in the environment.
    """
    owner = os.environ.get(OWNER_VARIABLE)
    if owner is not None and kept.startswith("http") and urlsplit(kept).netloc != owner:
        for name in (USER_VARIABLE, PASSWORD_VARIABLE, OWNER_VARIABLE):  # MLflow would show them to any server
            os.environ.pop(name, None)
    if HIDDEN not in kept:
        return kept
    uri = os.environ.get(VARIABLE, "")
    if kept_uri(uri) != kept:
        raise TrackingError(
            f"{kept}: its password is kept nowhere, and {VARIABLE} {f'is {kept_uri(uri)}' if uri else 'is not set'}; export "
            f"{VARIABLE} with the whole address"
        )
    return uri
