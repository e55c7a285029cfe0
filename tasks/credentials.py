"""The tracking server's address and login: MLflow's own variables carry them, and no run keeps any of the login.

It goes to one address: the one in MLFLOW_TRACKING_URI, unless its owner pairs the login with another one.
`tasks/tracking/store.py` keeps it out of every request to elsewhere.
"""

import os
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

from grpo_core.errors import ConfigError, TrackingError
from grpo_core.machine.disk import sqlite_file
from grpo_core.text import HIDDEN, kept_uri

VARIABLE = "MLFLOW_TRACKING_URI"
USER_VARIABLE, PASSWORD_VARIABLE, AUTH_VARIABLE = (
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_AUTH",
)
OWNER_VARIABLE = "GRPO_TRACKING_CREDENTIALS_OF"
"""The server that the login is for, where it is not the one in MLFLOW_TRACKING_URI; empty = none."""
ALLOWED_VARIABLE = "GRPO_ALLOWED_TRACKING"
"""Addresses, separated by commas, that deployments may track at beside the one in MLFLOW_TRACKING_URI; set with the worker.
`wandb` and `trackio`, which have no `/`, allow them in `tracking.also`."""
GUARD = "grpo-own-server"
"""What `OwnServerLogin` of `tasks/tracking/store.py` is called in MLFLOW_TRACKING_AUTH."""
UNGUARDED = (AUTH_VARIABLE, "MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_TRACKING_CLIENT_CERT_PATH")
UNGUARDED_OF_DATABASES = ("PGPASSWORD",)
"""Logins that cannot be kept out of a single request: with one of them another server is not spoken to at all."""
PORTS = {"http": 80, "https": 443}


def origin(uri: str | None) -> tuple[str, str, int | None] | None:
    """Return whom an address leads to: scheme, host and port; None for a file of this machine and for what is no address.

    In the place of its scheme a database has all of its address, any part of which may name another host.

    >>> origin("HTTP://me@Host/mlflow") == origin("http://host:80") != origin("https://host")
    True
    >>> origin("postgresql://me@db/mlflow") == origin("postgresql://me@db/mlflow?host=other")
    False
    >>> origin("sqlite:////tmp/mlflow.db"), origin("http://[::1")
    (None, None)
    """
    try:
        parts = urlsplit(uri or "")
        port = parts.port
    except ValueError:
        return None
    if parts.scheme in ("", "file", "sqlite") or not parts.hostname:
        return None
    return parts.scheme if parts.scheme in PORTS else kept_uri(uri or ""), parts.hostname, port or PORTS.get(parts.scheme)


def is_same_address(one: str, other: str) -> bool:
    """Return whether two addresses lead to the same server, or to the same store.

    >>> is_same_address("HTTP://host:80/a", "http://host"), is_same_address("sqlite:////a/../b.db", "sqlite:////b.db")
    (True, True)
    """
    files = [file and file.resolve() for file in map(sqlite_file, (one, other))]
    return one == other or (files[0], origin(one)) == (files[1], origin(other)) != (None, None)


def gets_login(uri: str) -> bool:
    """Return whether the login of this environment is for a server."""
    return origin(uri) is not None and origin(uri) == origin(os.environ.get(OWNER_VARIABLE, os.environ.get(VARIABLE)))


def allowed_addresses() -> list[str]:
    """Return the addresses that the owner of a worker allows beside its own."""
    return [one for one in _allowed() if "/" in one]


def is_tracker_allowed(name: str) -> bool:
    """Return whether a deployment may feed a tracker: TensorBoard, whose files lie in the run's folder, or one named there."""
    return name == "tensorboard" or name in _allowed()


def _allowed() -> list[str]:
    return [one.strip() for one in os.environ.get(ALLOWED_VARIABLE, "").split(",")]


def use_address(uri: str) -> None:
    """Track at an address from here on, in this process and its children; the login stays that of the server that it is for."""
    os.environ.update(address_variables(uri))


def address_variables(uri: str) -> dict[str, str]:
    """Return the variables of a process that tracks at an address, and has the login of this one."""
    return {VARIABLE: uri, OWNER_VARIABLE: os.environ.get(OWNER_VARIABLE, kept_uri(os.environ.get(VARIABLE, "")))}


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
    # What looks like the server's name may end inside the password.
    if "@" in uri.partition(server)[2] or (user and not password):
        raise ConfigError(
            f"{VARIABLE} {kept_uri(uri)}: its user and password cannot be told apart; write %2F %3F %23 and %40 for / ? # and "
            f"@, or set {USER_VARIABLE} and {PASSWORD_VARIABLE}; a token alone goes into MLFLOW_TRACKING_TOKEN"
        )
    os.environ[VARIABLE] = kept_uri(uri)
    if user:
        os.environ[USER_VARIABLE], os.environ[PASSWORD_VARIABLE] = unquote(user), unquote(password)
        os.environ[OWNER_VARIABLE] = os.environ[VARIABLE]


def environment_uri() -> str | None:
    """Return the address in MLFLOW_TRACKING_URI as it may be kept; None where there is none."""
    move_credentials()
    uri = os.environ.get(VARIABLE)
    return kept_uri(uri) if uri else None


def usable_uri(kept: str) -> str:
    """Return an address with which a connection can be made: that in MLFLOW_TRACKING_URI where a kept one stands for it.

    Raises:
        TrackingError: its password is not in the environment, or a login would go with it that is for another server.
    """
    if (to := origin(kept)) is not None and not gets_login(kept):
        names = UNGUARDED if to[0] in PORTS else UNGUARDED_OF_DATABASES
        if held := [name for name in names if os.environ.get(name) not in (None, "", "false", GUARD)]:
            raise TrackingError(
                f"{kept}: is not the server that the login in {' and '.join(held)} is for, which is the one in {VARIABLE}; "
                f"export {VARIABLE} with this address, or unset {' and '.join(held)}"
            )
    if HIDDEN not in kept:
        return kept
    uri = os.environ.get(VARIABLE, "")
    if kept_uri(uri) != kept:
        raise TrackingError(
            f"{kept}: its password is kept nowhere, and {VARIABLE} {f'is {kept_uri(uri)}' if uri else 'is not set'}; export "
            f"{VARIABLE} with the whole address"
        )
    return uri


def ui_address(uri: str) -> str | None:
    """Return the address of MLflow's pages; None for a store, which has none until `mlflow ui` shows it.

    >>> ui_address("https://host/mlflow/"), ui_address("http://me:secret@host:5000"), ui_address("sqlite:////tmp/mlflow.db")
    ('https://host/mlflow', 'http://host:5000', None)
    """
    if not uri.lower().startswith(("http://", "https://")):
        return None
    parts = urlsplit(kept_uri(uri))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def mlflow_page(base: str, of: str = "", **shown: str) -> str:
    """Return the address of a page of MLflow, which opens an experiment as one of "GenAI" unless the address names its kind.

    Args:
        base: of MLflow's pages.
        of: whose page, such as `/1/runs/abc` for a run of the experiment 1; empty = the list of experiments.
        shown: what the page shows.

    >>> mlflow_page("http://host", "/1/runs", compareRunsMode="CHART")
    'http://host/#/experiments/1/runs?workflowType=machine_learning&compareRunsMode=CHART'
    """
    return f"{base}/#/experiments{of}?{urlencode({'workflowType': 'machine_learning', **shown})}"
