"""MLflow's databases, made and brought up to date by its own migrations: a local SQLite file, and those of a server.

MLflow runs its migrations in the file itself: a process that is killed meanwhile leaves half a migration, which no later start
can complete. So a new file is made beside its name and renamed, by one process at a time.
"""

import contextlib
import os
import shutil
import sqlite3
from importlib.metadata import version
from pathlib import Path

from grpo_core.errors import TrackingError, raised_as
from grpo_core.machine.disk import durable, durable_folder
from grpo_core.machine.locks import waited_lock
from grpo_core.machine.process import gc_paused
from grpo_core.policy.sources.cache import cache_folder
from tasks.run.progress import say

PATIENCE_SECONDS = 600.0
"""For another process that prepares a store: seconds of work, minutes on a machine that is overloaded."""


def ensure_store(path: Path, artifacts: str = "./mlruns") -> None:
    """Create the store of a SQLite file where there is none, or upgrade one that an older MLflow has made.

    Args:
        path: the file.
        artifacts: where the artifacts of the experiment `Default` go, in a store that is created here.

    Raises:
        TrackingError: the store is broken, of a newer MLflow, locked, or cannot be created.
        BusyError: another process has been creating it for too long.
    """
    fault = (
        f"tracking store {path}: cannot be used ({{cause}}). Move the file away and start again: a new one is made, and `grpo "
        "track RUN_DIR` logs earlier runs to it"
    )
    with raised_as(TrackingError, fault, Exception):
        if _is_current(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        lock, what = path.with_name(f".{path.name}.lock"), f"prepares the tracking store {path}"
        with waited_lock(lock, what, patience=PATIENCE_SECONDS, say=say):
            if not path.exists():
                with durable(path) as partial:
                    _make(partial, artifacts)
            elif not _is_current(path):
                _upgrade(f"sqlite:///{path}")
                say(f"upgraded the tracking store {path} to MLflow {version('mlflow')}")


def _make(file: Path, artifacts: str) -> None:
    """Make a store out of an empty one that this MLflow has made before: its migrations take seconds."""
    with gc_paused():
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    empty = cache_folder() / f"mlflow-{version('mlflow')}.db"
    with contextlib.suppress(Exception):  # without it they are run
        if not empty.exists() and os.access(durable_folder(empty.parent), os.W_OK):
            with durable(empty) as made:
                SqlAlchemyStore(f"sqlite:///{made}", artifacts)._dispose_engine()
                with contextlib.closing(sqlite3.connect(made)) as database:
                    database.execute("DELETE FROM experiments")  # the first one names a folder of artifacts
                    database.commit()
        shutil.copyfile(empty, file)
    SqlAlchemyStore(f"sqlite:///{file}", artifacts)._dispose_engine()


def _is_current(path: Path) -> bool:
    from mlflow.store.db.utils import _get_latest_schema_revision, _get_schema_version, create_sqlalchemy_engine

    if not path.exists():
        return False
    engine = create_sqlalchemy_engine(f"sqlite:///{path}")
    is_current = _get_schema_version(engine) == _get_latest_schema_revision()
    engine.dispose()
    return bool(is_current)


def _upgrade(address: str) -> None:
    from mlflow.store.db.utils import _upgrade_db, create_sqlalchemy_engine

    engine = create_sqlalchemy_engine(address)
    _upgrade_db(engine)
    engine.dispose()


def users_database() -> str:
    """Return the address of a server's database of users and permissions, from the file that MLFLOW_AUTH_CONFIG_PATH names."""
    from mlflow.server.auth.config import read_auth_config

    return str(read_auth_config().database_uri)


def upgrade_schema(store: str, users: str) -> None:
    """Bring a server's databases to the version of the MLflow that is installed: by hand, since it refuses an older schema.

    No server may use them meanwhile. An empty one stays empty: the server makes its tables when it starts.

    Args:
        store: address of the database of runs, as SQLAlchemy takes it.
        users: address of that of users and permissions.
    """
    from mlflow.store.db.utils import create_sqlalchemy_engine
    from sqlalchemy import inspect

    if inspect(create_sqlalchemy_engine(store)).get_table_names():
        _upgrade(store)
    of_users = create_sqlalchemy_engine(users)
    if inspect(of_users).get_table_names():
        from mlflow.server.auth.db.utils import migrate

        migrate(of_users, "head")


def ensure_user(users: str, name: str, password: str) -> None:
    """Let somebody log in who may track: make experiments and models and write into his own, and nothing in anybody else's.

    Args:
        users: address of the database of users and permissions; an empty one gets its tables.
        name: of the user, who is no administrator.
        password: the only one with which he is let in from here on.
    """
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore()
    store.init_db(users)
    if not store.has_user(name):
        store.create_user(name, password)
    else:
        store.update_user(name, password=password, is_admin=False)
