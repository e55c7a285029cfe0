"""Where a run is tracked, how its MLflow server is reached, and what MLflow's client may do with an address that it is given.

Explicit run ids and `MlflowClient` throughout: the fluent API has one active run a process and ends failed runs as FINISHED.
Whom it logs in to and where it writes files is asked by plugins of MLflow's own, so that holds for whatever of it makes the
request: runs, artifacts, the registry.
"""

import contextlib
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlparse

from pydantic.dataclasses import dataclass
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from grpo_core.config import RunConfig
from grpo_core.errors import TrackingError, raised_as
from grpo_core.machine.disk import PARTIAL, STORED, build, read_json, sqlite_file
from grpo_core.machine.process import gc_paused
from grpo_core.run.flow_folder import FlowDir
from grpo_core.text import HIDDEN, kept_uri
from tasks import credentials
from tasks.credentials import VARIABLE, environment_uri, is_same_address, mlflow_page, ui_address, usable_uri
from tasks.tracking.databases import ensure_store

SHORT_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
PATIENCE_SECONDS = 240.0
"""How long the inputs of a run wait for a server that is away."""
LOCAL_UI = "http://127.0.0.1:5000"
"""The address that `mlflow ui` prints."""
ARTIFACTS = "mlartifacts"
"""Folder of the artifacts of a local store, beside it."""
LOCAL_SCHEMES, REMOTE_SCHEMES = ("", "file"), ("http", "https", "mlflow-artifacts")
_ensure_once = cache(ensure_store)


@dataclass(frozen=True, kw_only=True, config=STORED)
class TrackedRun:
    """Where a run is tracked."""

    uri: str
    """As it may be kept: `make_client` finds the password of a database's in MLFLOW_TRACKING_URI."""
    experiment_id: str
    run_id: str
    name: str
    view: str = ""
    """Id of the saved view of its experiment; empty where the store has not taken it."""

    @property
    def has_pages(self) -> bool:
        """Whether a server shows it; a store has pages only while `mlflow ui` runs."""
        return ui_address(self.uri) is not None

    @property
    def address(self) -> str:
        """The run's page: below the server's address, or below the one that `mlflow ui` prints."""
        return mlflow_page(ui_address(self.uri) or LOCAL_UI, f"/{self.experiment_id}/runs/{self.run_id}")

    @property
    def charts_address(self) -> str:
        """The page with the charts of all runs of the experiment over each other; MLflow refuses an unknown view."""
        view = {"viewStateShareKey": self.view} if self.view else {}
        return mlflow_page(ui_address(self.uri) or LOCAL_UI, f"/{self.experiment_id}/runs", compareRunsMode="CHART", **view)

    @property
    def ui_command(self) -> str:
        """What to type to look at it."""
        store = f'"${VARIABLE}"' if HIDDEN in self.uri else shlex.quote(self.uri)
        return "" if self.has_pages else f"mlflow ui --backend-store-uri {store}"

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Lines that show where it is, each with its label."""
        command = (("MLflow", f"{self.ui_command}, then"),) if self.ui_command else ()
        return (*command, ("" if command else "MLflow", self.address), ("charts", self.charts_address))


def read_tracked(flow_dir: FlowDir) -> TrackedRun:
    """Return where a run or sweep says that it is tracked, in its tracking.json; `own_tracked` also looks whether it may be.

    Raises:
        TrackingError: it was never tracked, or the file was changed into something else.
    """
    what = f"{flow_dir.what} {flow_dir.path}: has no readable tracking.json, so it has no run in MLflow ({{cause}})"
    with raised_as(TrackingError, what, OSError, ValueError):
        return build(TrackedRun, read_json(flow_dir.tracking_file))


def own_tracked(flow_dir: FlowDir) -> TrackedRun:
    """Return where a folder's run is to be looked for: where its tracking.json says, if that is an address of ours.

    A run that is found at one of ours has moved there.

    Raises:
        TrackingError: it was never tracked, or its tracking.json names an address that is not ours.
    """
    known = read_tracked(flow_dir)
    try:
        refuse_foreign(flow_dir, "tracking.json", known.uri)
    except TrackingError:
        for uri in _own_addresses(flow_dir):
            with contextlib.suppress(Exception):  # mlflow raises unrelated types for each store
                make_client(uri, create=False).get_run(known.run_id)
                return replace(known, uri=uri)
        raise
    return known


def refuse_foreign(flow_dir: FlowDir, file: str, uri: str) -> None:
    """Refuse a folder of which a file names an address that is not ours.

    Ours are the one in MLFLOW_TRACKING_URI, those that its owner allows deployments, and the store beside the folder, or beside
    its sweep. A folder may come from somebody else, so any other is neither spoken to nor made until it is confirmed.

    Raises:
        TrackingError: names the address and how it is confirmed.
    """
    if not any(is_same_address(uri, own) for own in _own_addresses(flow_dir)):
        given = f"`--tracking-uri {shlex.quote(uri)}`" if HIDDEN not in uri else f"{VARIABLE} with the whole address"
        raise TrackingError(
            f"{flow_dir.what} {flow_dir.path}: its {file} names {uri}, which is neither the address in {VARIABLE} "
            f"({environment_uri() or 'not set'}) nor the store beside the folder; nothing was sent there. If you trust it, "
            f"{given} confirms it; a login goes to the server of {VARIABLE} alone"
        )


def _own_addresses(flow_dir: FlowDir) -> list[str]:
    folder = flow_dir.path.resolve().parent
    of_sweep = [default_uri(folder.parent.parent)] if (folder.parent / "sweep.json").exists() else []
    return [*filter(None, [environment_uri()]), *credentials.allowed_addresses(), default_uri(folder), *of_sweep]


def tracking_uri(config: RunConfig, run_path: Path) -> str:
    """Return `tracking.uri`, else MLFLOW_TRACKING_URI, else SQLite beside the run directories; as it may be kept."""
    return config.tracking.uri or environment_uri() or default_uri(run_path.parent)


def default_uri(runs_folder: Path) -> str:
    """Return the SQLite store beside run directories."""
    return f"sqlite:///{runs_folder.resolve() / 'mlflow.db'}"


def log_folder(client: Any, run_id: str, folder: Path, name: str) -> None:
    """Log the files of a folder as an artifact, without those that a killed process has left half-written."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(PARTIAL)):
        client.log_artifact(run_id, str(file), str(PurePosixPath(name, file.relative_to(folder).parent)))


def make_client(uri: str, create: bool = True) -> Any:
    """Return a client of a tracking store or server; a local store is created, or upgraded, once, by one process.

    Args:
        uri: of the store or server.
        create: whether a local store that does not exist is created; to read from it would be pointless.

    Raises:
        TrackingError: a local store is broken or cannot be created, or the password of another is not in the environment.
        BusyError: another process has been creating it for too long.
    """
    file = sqlite_file(uri)
    if file is not None and not create and not file.exists():
        raise TrackingError(f"tracking store {file}: there is no such file; set MLFLOW_TRACKING_URI to the run's store")
    _import_mlflow()
    if file is not None:
        _ensure_once(file)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=usable_uri(uri))


@cache
def _import_mlflow() -> None:
    """Import MLflow, whose client gives up soon: by itself it would wait for minutes, and each caller decides how long.

    Its requests and artifacts ask the guards below; no redirect is followed, with a login or without.
    """
    for name, value in SHORT_RETRIES.items():
        os.environ.setdefault(name, value)
    with gc_paused():
        import_module("mlflow")
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry
    from mlflow.tracking.request_auth.registry import _request_auth_provider_registry

    if os.environ.get(credentials.AUTH_VARIABLE) in (None, "", "false"):
        os.environ[credentials.AUTH_VARIABLE] = credentials.GUARD
    os.environ["MLFLOW_ALLOW_HTTP_REDIRECTS"] = "false"
    _request_auth_provider_registry.register(OwnServerLogin)
    for scheme in LOCAL_SCHEMES:
        _artifact_repository_registry.register(scheme, _local_artifacts)
    for scheme in REMOTE_SCHEMES:
        repository = _remote_artifacts(_artifact_repository_registry._registry[scheme])
        _artifact_repository_registry.register(scheme, repository)


class OwnServerLogin:
    """Takes the login out of each request that does not go to the server that it is for (`gets_login`).

    requests looks into ~/.netrc only where nobody authenticates a request, so nothing of that is sent either.
    """

    def get_name(self) -> str:
        """Return what it is called in MLFLOW_TRACKING_AUTH."""
        return credentials.GUARD

    def get_auth(self) -> Callable[[Any], Any]:
        """Return what requests calls with each request before it is sent."""
        return _without_foreign_login


def _without_foreign_login(request: Any) -> Any:
    if not credentials.gets_login(request.url):
        request.headers.pop("Authorization", None)
    return request


def _local_artifacts(artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> Any:
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
    store = sqlite_file(uri)
    is_beside = store is None or Path(repository.artifact_dir).resolve().is_relative_to(store.resolve().parent / ARTIFACTS)
    is_local = urlparse(uri).scheme in (*LOCAL_SCHEMES, "sqlite")
    if is_local and (is_beside or is_same_address(uri, environment_uri() or "")):
        return repository
    raise TrackingError(
        f"artifact address {artifact_uri}: is a folder of this machine, which {kept_uri(uri)} may not name; nothing was "
        "written there. A server needs --artifacts-destination, a database an experiment in an object store; where it is a "
        f"SQLite file of yours that was moved, export {VARIABLE} with its address"
    )


def _remote_artifacts(kind: Callable[..., Any]) -> Callable[..., Any]:
    """Return MLflow's repository of artifacts that a server keeps, for the servers that may be spoken to (`usable_uri`)."""

    def repository(artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> Any:
        usable_uri((made := kind(artifact_uri, tracking_uri, registry_uri)).artifact_uri)
        return made

    return repository


def _may_pass(error: BaseException) -> bool:
    # no answer, a lock, a row that another run added
    return isinstance(error, OSError) or getattr(error, "error_code", None) in (
        "INTERNAL_ERROR",
        "TEMPORARILY_UNAVAILABLE",
        "BAD_REQUEST",
    )


patiently = retry(
    retry=retry_if_exception(_may_pass), stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(1), reraise=True
)
"""Decorator of what may be done twice: repeat it while MLflow does not answer or is busy."""
