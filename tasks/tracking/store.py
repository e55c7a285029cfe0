"""Where a run is tracked, and how its MLflow server is reached.

Explicit run ids and `MlflowClient` throughout: the fluent API has one active run a process and ends failed runs as FINISHED.
"""

import contextlib
import os
import shlex
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic.dataclasses import dataclass
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from grpo_core.config import RunConfig
from grpo_core.errors import TrackingError, raised_as
from grpo_core.machine.disk import PARTIAL, sqlite_file
from grpo_core.machine.jsonfile import STORED, build, read_json
from grpo_core.machine.process import gc_paused
from grpo_core.run.flow_folder import FlowDir
from grpo_core.text import HIDDEN, kept_uri
from tasks.credentials import VARIABLE, allowed_addresses, environment_uri, is_same_address, usable_uri
from tasks.links import LOCAL_UI, mlflow_charts_page, mlflow_run_page, ui_address
from tasks.tracking.guards import install_guards
from tasks.tracking.local_store import ensure_store

SHORT_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
PATIENCE_SECONDS = 240.0
"""How long the inputs of a run wait for a server that is away."""


@dataclass(frozen=True, kw_only=True, config=STORED)
class TrackedRun:
    """Where a run is tracked."""

    uri: str
    """As it may be kept: `make_client` finds the password of a database's in MLFLOW_TRACKING_URI."""
    experiment_id: str
    run_id: str
    name: str
    view: str = ""
    """Id of the saved view of its experiment; empty where the store has not taken it, or an earlier version tracked the run."""

    @property
    def has_pages(self) -> bool:
        """Whether a server shows it; a store has pages only while `mlflow ui` runs."""
        return ui_address(self.uri) is not None

    @property
    def address(self) -> str:
        """The run's page: below the server's address, or below the one that `mlflow ui` prints."""
        return mlflow_run_page(ui_address(self.uri) or LOCAL_UI, self.experiment_id, self.run_id)

    @property
    def charts_address(self) -> str:
        """The page with the charts of all runs of the experiment over each other."""
        return mlflow_charts_page(ui_address(self.uri) or LOCAL_UI, self.experiment_id, self.view)

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
        tracked = build(TrackedRun, read_json(flow_dir.tracking_file))
    return replace(tracked, uri=kept_uri(tracked.uri))


def own_tracked(flow_dir: FlowDir) -> TrackedRun:
    """Return where a folder's run is to be looked for: where its tracking.json says, if that is an address of ours.

    A run that is found at one of ours has moved there.

    Raises:
        TrackingError: it was never tracked, or its tracking.json names an address that is not ours.
    """
    known = read_tracked(flow_dir)
    if not is_own(flow_dir, known.uri):
        for uri in _own_addresses(flow_dir):
            with contextlib.suppress(Exception):  # mlflow raises unrelated types for each store
                make_client(uri, create=False).get_run(known.run_id)
                return replace(known, uri=uri)
        refuse_foreign(flow_dir, "tracking.json", known.uri)
    return known


def refuse_foreign(flow_dir: FlowDir, file: str, uri: str) -> None:
    """Refuse a folder of which a file names an address that is not ours.

    Ours are the one in MLFLOW_TRACKING_URI, those that its owner allows deployments, and the store beside the folder, or beside
    its sweep. A folder may come from somebody else, so any other is neither spoken to nor made until it is confirmed.

    Raises:
        TrackingError: names the address and how it is confirmed.
    """
    if not is_own(flow_dir, uri):
        given = f"`--tracking-uri {shlex.quote(uri)}`" if HIDDEN not in uri else f"{VARIABLE} with the whole address"
        raise TrackingError(
            f"{flow_dir.what} {flow_dir.path}: its {file} names {uri}, which is neither the address in {VARIABLE} "
            f"({environment_uri() or 'not set'}) nor the store beside the folder; nothing was sent there. If you trust it, "
            f"{given} confirms it; a login goes to the server of {VARIABLE} alone"
        )


def is_own(flow_dir: FlowDir, uri: str) -> bool:
    """Return whether an address is one of ours."""
    return any(is_same_address(uri, own) for own in _own_addresses(flow_dir))


def _own_addresses(flow_dir: FlowDir) -> list[str]:
    folder = flow_dir.path.resolve().parent
    beside = [default_uri(folder)]
    if (folder.parent / "sweep.json").exists():
        beside.append(default_uri(folder.parent.parent))
    return [*filter(None, [environment_uri()]), *allowed_addresses(), *beside]


def tracking_uri(config: RunConfig, run_path: Path) -> str:
    """Return `tracking.uri`, else MLFLOW_TRACKING_URI, else SQLite beside the run directories; as it may be kept."""
    return config.tracking.uri or environment_uri() or default_uri(run_path.parent)


def default_uri(runs_folder: Path) -> str:
    """Return the SQLite store beside run directories."""
    return f"sqlite:///{runs_folder.resolve() / 'mlflow.db'}"


def log_folder(client: Any, run_id: str, folder: Path, name: str) -> None:
    """Log the files of a folder as an artifact, without those that a killed process has left half-written."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = file.relative_to(folder)
        if not place.name.endswith(PARTIAL):
            client.log_artifact(run_id, str(file), str(PurePosixPath(name, place.parent)))


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
        _ensure_store_once(file)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=usable_uri(uri))


@cache
def _import_mlflow() -> None:
    """Import MLflow, whose client gives up soon: by itself it would wait for minutes, and each caller decides how long."""
    for name, value in SHORT_RETRIES.items():
        os.environ.setdefault(name, value)
    with gc_paused():
        import_module("mlflow")
    install_guards()


@cache
def _ensure_store_once(file: Path) -> None:
    with gc_paused():
        import_module("mlflow.store.tracking.sqlalchemy_store")
    ensure_store(file)


def _may_pass(error: BaseException) -> bool:
    codes = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "BAD_REQUEST")  # no answer, a lock, a row that another run added
    return isinstance(error, OSError) or getattr(error, "error_code", None) in codes


patiently = retry(
    retry=retry_if_exception(_may_pass), stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(1), reraise=True
)
"""Decorator of what may be done twice: repeat it while MLflow does not answer or is busy."""
