"""Where MLflow keeps the artifacts of a run, if that is a disk of this machine."""

from pathlib import Path
from urllib.parse import unquote, urlparse

from tasks.tracking.store import TrackedRun, make_client, short_retries


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
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path)).parents[1]  # ROOT/<run id>/artifacts


def is_local(uri: str) -> bool:
    """Return whether a tracking store is a file or folder of this machine, and no server or database of another.

    >>> is_local("sqlite:////tmp/mlflow.db"), is_local("http://127.0.0.1:5000"), is_local("postgresql://host/mlflow")
    (True, False, False)
    """
    return urlparse(uri).scheme in ("", "file", "sqlite")
