"""A tracking store in a local SQLite file, created and upgraded by MLflow's own migrations, by one process at a time.

MLflow runs its migrations in the file itself: a process that is killed meanwhile leaves half a migration, which no later start
can complete. So a new store is made beside its name and renamed.
"""

from importlib.metadata import version
from pathlib import Path

from grpo_core.errors import TrackingError, raised_as
from grpo_core.machine.disk import durable
from grpo_core.machine.locks import waited_lock
from tasks.run.progress import say

PATIENCE_SECONDS = 600.0
"""For another process that prepares a store: seconds of work, minutes on a machine that is overloaded."""
LOCAL_ARTIFACTS = "./mlruns"
"""Where MLflow puts what is logged to its experiment `Default`, unless a server keeps it."""


def ensure_store(path: Path, artifacts: str = LOCAL_ARTIFACTS) -> None:
    """Create the store of a SQLite file where there is none, or upgrade one that an older MLflow has made.

    Args:
        path: the file.
        artifacts: where the artifacts of the experiment `Default` go, in a store that is created here.

    Raises:
        TrackingError: the store is broken, of a newer MLflow, locked, or cannot be created.
        BusyError: another process has been creating it for too long.
    """
    remedy = "Move the file away and start again: a new one is made, and `grpo track RUN_DIR` logs earlier runs to it"
    with raised_as(TrackingError, f"tracking store {path}: cannot be used ({{cause}}). {remedy}", Exception):
        if _is_current(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock")
        with waited_lock(lock, f"prepares the tracking store {path}", patience=PATIENCE_SECONDS, say=say):
            if not _is_made(path):
                _create(path, artifacts)
            elif not _is_current(path):
                _upgrade(path)


def _is_made(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _is_current(path: Path) -> bool:
    from mlflow.store.db import utils

    if not _is_made(path):
        return False
    engine = utils.create_sqlalchemy_engine(f"sqlite:///{path}")
    try:
        return bool(utils._get_schema_version(engine) == utils._get_latest_schema_revision())
    finally:
        engine.dispose()


def _create(path: Path, artifacts: str) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with durable(path) as partial:
        SqlAlchemyStore(f"sqlite:///{partial}", artifacts)._dispose_engine()


def _upgrade(path: Path) -> None:
    """Do what `mlflow db upgrade` does."""
    from mlflow.store.db import utils

    engine = utils.create_sqlalchemy_engine(f"sqlite:///{path}")
    try:
        utils._upgrade_db(engine)
    finally:
        engine.dispose()
    say(f"upgraded the tracking store {path} to MLflow {version('mlflow')}")
