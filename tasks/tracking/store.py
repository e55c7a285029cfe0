"""Where a run is tracked, and how its MLflow server is reached.

Explicit run ids and `MlflowClient` throughout: the fluent API has one active run a process and ends failed runs as FINISHED.
"""

import contextlib
import os
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlparse

from pydantic.dataclasses import dataclass

from grpo_core.config import RunConfig
from grpo_core.errors import GrpoError, TrackingError, cause
from grpo_core.machine.collector import gc_paused
from grpo_core.machine.disk import PARTIAL
from grpo_core.machine.jsonfile import STORED, build, read_json
from grpo_core.machine.sqlite import sqlite_file
from grpo_core.redaction import HIDDEN, kept_uri, redact_uri
from grpo_core.run.flow_folder import FlowDir
from grpo_core.run.folder import RunDir
from tasks.credentials import VARIABLE, allowed_addresses, environment_uri, is_same_address, usable_uri
from tasks.links import LOCAL_UI, mlflow_charts_page, mlflow_run_page, ui_address
from tasks.tracking.guards import install_guards, is_local
from tasks.tracking.local_store import close_connections, ensure_store, refuse_incomplete


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
    writers: tuple[str, ...] = field(default=(), compare=False)
    """What the tag `grpo.writer` of the run may hold as long as no copy of the folder has opened it."""

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


def read_tracked(run_dir: RunDir) -> TrackedRun:
    """Return where a run says that it is tracked, in its tracking.json; `own_tracked` says whether it may be spoken to.

    Raises:
        TrackingError: it was never tracked, or the file was changed into something else.
    """
    try:
        return read_tracking_file(run_dir.tracking_file)
    except (OSError, ValueError) as error:
        raise TrackingError(
            f"run dir {run_dir.path}: has no readable tracking.json, so it has no run in MLflow ({cause(error)})"
        ) from error


def own_tracked(flow_dir: FlowDir, known: TrackedRun) -> TrackedRun:
    """Return where a folder's run is to be looked for: where its tracking.json says, if that is an address of ours.

    A run that is found at one of ours has moved there.

    Raises:
        TrackingError: it names another one.
    """
    if not is_own(flow_dir, known.uri):
        for uri in _own_addresses(flow_dir):
            with contextlib.suppress(Exception), short_retries():  # mlflow raises unrelated types for each store
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


def read_tracking_file(path: Path) -> TrackedRun:
    """Return what a tracking.json holds, without the password that an earlier version may have left there.

    Raises:
        OSError: it cannot be read.
        ValueError: it was changed into something else.
    """
    tracked = build(TrackedRun, read_json(path))
    return replace(tracked, uri=kept_uri(tracked.uri))


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
    if file is not None:
        _check_store(uri, file, create)
    _import_mlflow()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=usable_uri(uri))


@cache
def _import_mlflow(store: str = "") -> None:
    """Import MLflow, and the module of it that `store` names, once."""
    with gc_paused():
        import_module(f"mlflow{store}")
    if not store:
        install_guards()


_checked: dict[Path, tuple[int, int]] = {}
"""Device and inode of the local stores that this process has found whole: most clients live for one request."""


def _check_store(uri: str, file: Path, create: bool) -> None:
    if not file.exists():
        if not create:
            raise TrackingError(f"tracking store {file}: there is no such file; set MLFLOW_TRACKING_URI to the run's store")
    elif _checked.get(file) == _identity(file):
        return
    _import_mlflow(".store.tracking.sqlalchemy_store")
    ensure_store(file)
    refuse_incomplete(file)
    if file in _checked:
        close_connections(uri)  # they lead to the file that was moved away
    _checked[file] = _identity(file)


def _identity(file: Path) -> tuple[int, int]:
    facts = file.stat()
    return facts.st_dev, facts.st_ino


SHORT_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


_users_lock = threading.Lock()
_before: list[dict[str, str]] = []
"""One for each thread inside `short_retries`: what the environment held of these names before the first of them."""


@contextmanager
def short_retries() -> Iterator[None]:
    """Let the caller decide how long to wait: MLflow's own retries would block for minutes. Safe in threads.

    MLflow reads its environment, which all threads share: the first user sets it, the last one puts back what was there.
    """
    with _users_lock:
        _before.append(_before[0] if _before else {name: os.environ[name] for name in SHORT_RETRIES if name in os.environ})
        os.environ.update(SHORT_RETRIES)
    try:
        yield
    finally:
        with _users_lock:
            before = _before.pop()
            if not _before:
                os.environ.update(before)
                for name in SHORT_RETRIES.keys() - before.keys():
                    os.environ.pop(name, None)


@contextmanager
def tracking_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn whatever MLflow raises inside, after short retries, into an error for the user: mlflow's types differ by store.

    Args:
        what: cannot be done, with the key or run that it is about.
        remedy: what to do about it.

    Raises:
        TrackingError: something inside failed.
        GrpoError: as raised inside: the message about a local store that is broken names the file and what to do.
    """
    try:
        with short_retries():
            yield
    except GrpoError:
        raise
    except Exception as error:
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)  # SQL follows it, and more
        raise TrackingError(f"{what} ({redact_uri(first_line)[:300]}); {remedy}") from error


def artifact_folder(tracked: TrackedRun) -> Path | None:
    """Return the local folder that a run's artifacts go to; None where a server takes them, or it cannot be known."""
    if not is_local(tracked.uri):
        return None
    try:
        with short_retries():
            address = make_client(tracked.uri).get_run(tracked.run_id).info.artifact_uri
    except Exception:  # noqa: BLE001  (mlflow raises unrelated types; the figure is only an estimate)
        return None
    parts = urlparse(str(address))
    return Path(unquote(parts.path)).parents[1] if parts.scheme in ("", "file") else None  # ROOT/<run id>/artifacts
