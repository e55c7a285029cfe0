"""What MLflow's client may do with an address that a server or a store gives it: whom it logs in to, and where it writes files.

Both are plugins of MLflow's own, so they hold for whatever of it makes the request: runs, artifacts, the registry.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from grpo_core.errors import TrackingError
from grpo_core.machine.disk import sqlite_file
from grpo_core.text import kept_uri
from tasks.credentials import AUTH_VARIABLE, GUARD, VARIABLE, environment_uri, gets_login, is_same_address, usable_uri

ARTIFACTS = "mlartifacts"
"""Folder of the artifacts of a local store, beside it."""
LOCAL_SCHEMES, REMOTE_SCHEMES = ("", "file"), ("http", "https", "mlflow-artifacts")


class OwnServerLogin:
    """Takes the login out of each request that does not go to the server that it is for (`gets_login`).

    requests looks into ~/.netrc only where nobody authenticates a request, so nothing of that is sent either.
    """

    def get_name(self) -> str:
        """Return what it is called in MLFLOW_TRACKING_AUTH."""
        return GUARD

    def get_auth(self) -> Callable[[Any], Any]:
        """Return what requests calls with each request before it is sent."""
        return _without_foreign_login


def _without_foreign_login(request: Any) -> Any:
    if not gets_login(request.url):
        request.headers.pop("Authorization", None)
    return request


def local_artifacts(artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> Any:
    """Return MLflow's repository of artifacts in a local folder, for a local store alone.

    A store that was found beside a run may have come with it: its artifacts lie in `mlartifacts` beside it. In the one that
    MLFLOW_TRACKING_URI names they may lie anywhere.

    Raises:
        TrackingError: a server, or such a store, names a folder elsewhere.
    """
    import mlflow
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    repository = LocalArtifactRepository(artifact_uri, tracking_uri, registry_uri)
    uri = tracking_uri or mlflow.get_tracking_uri()
    store, folder = sqlite_file(uri), Path(repository.artifact_dir).resolve()
    is_beside = store is None or folder.is_relative_to(store.resolve().parent / ARTIFACTS)
    if is_local(uri) and (is_beside or is_same_address(uri, environment_uri() or "")):
        return repository
    raise TrackingError(
        f"artifact address {artifact_uri}: is a folder of this machine, which {kept_uri(uri)} may not name; nothing was "
        "written there. A server needs --artifacts-destination, a database an experiment in an object store; where it is a "
        f"SQLite file of yours that was moved, export {VARIABLE} with its address"
    )


def remote_artifacts(kind: Callable[..., Any]) -> Callable[..., Any]:
    """Return MLflow's repository of artifacts that a server keeps, for the servers that may be spoken to (`usable_uri`)."""

    def repository(artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> Any:
        made = kind(artifact_uri, tracking_uri, registry_uri)
        usable_uri(made.artifact_uri)
        return made

    return repository


def is_local(uri: str) -> bool:
    """Return whether a tracking store is a file or folder of this machine, and no server or database of another.

    >>> is_local("sqlite:////tmp/mlflow.db"), is_local("http://127.0.0.1:5000"), is_local("postgresql://host/mlflow")
    (True, False, False)
    """
    return urlparse(uri).scheme in (*LOCAL_SCHEMES, "sqlite")


def install_guards() -> None:
    """Let MLflow's client in this process ask them; no redirect is followed, with a login or without."""
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry
    from mlflow.tracking.request_auth.registry import _request_auth_provider_registry

    if os.environ.get(AUTH_VARIABLE) in (None, "", "false"):
        os.environ[AUTH_VARIABLE] = GUARD
    os.environ["MLFLOW_ALLOW_HTTP_REDIRECTS"] = "false"
    _request_auth_provider_registry.register(OwnServerLogin)
    for scheme in LOCAL_SCHEMES:
        _artifact_repository_registry.register(scheme, local_artifacts)
    for scheme in REMOTE_SCHEMES:
        kind = _artifact_repository_registry._registry[scheme]
        _artifact_repository_registry.register(scheme, remote_artifacts(kind))
