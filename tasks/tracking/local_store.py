"""A tracking store in a local SQLite file: created whole or not at all, upgraded in a copy, and refused where it is broken.

MLflow creates its tables in some sixty migrations, in the file itself and without a lock: two processes that do so at once, or
one that is killed meanwhile, leave half a migration, which no later start can complete. So one process creates the store in
a file beside it, under a lock, and renames it; all others find it ready. MLflow is imported only where there is work to do.
"""

import contextlib
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution, version
from pathlib import Path
from urllib.parse import quote

from grpo_core.errors import TrackingError, cause, name_of
from grpo_core.machine.disk import free_name
from grpo_core.machine.locks import waited_lock
from grpo_core.machine.sqlite import revisions
from tasks.run.progress import say as say_to_user

PATIENCE_SECONDS = 600.0
"""For another process that creates or upgrades a store: seconds of work, minutes on a machine that is overloaded."""
BUSY_SECONDS = 20.0
"""For another program that is writing to a store."""
LOCAL_ARTIFACTS = "./mlruns"
"""Where MLflow puts what is logged to its experiment `Default`, unless a server keeps it."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What a SQLite file holds, as far as MLflow's migrations are concerned."""

    tables: frozenset[str]
    revisions: tuple[str, ...]
    """One for a whole store, none in an empty file."""

    @property
    def is_current(self) -> bool:
        """Whether this version of MLflow can use it as it is."""
        is_half = any(table.startswith("_alembic_tmp_") for table in self.tables)  # left by a migration that was cut short
        return self.revisions == (_history()[0],) and not is_half


def ensure_store(path: Path, artifacts: str = LOCAL_ARTIFACTS, say: Callable[[str], None] = say_to_user) -> None:
    """Create the store of a SQLite file where there is none, or upgrade one that an older MLflow has made.

    Args:
        path: the file.
        artifacts: where the artifacts of the experiment `Default` go, in a store that is created here.
        say: takes lines for the user.

    Raises:
        TrackingError: the store is broken, of a newer MLflow, locked, or cannot be created; the message says what to do.
        BusyError: another process is creating it for too long.
    """
    if _is_made(path) and _read_schema(path).is_current:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with waited_lock(
            path.with_name(f".{path.name}.lock"), f"prepares the tracking store {path}", patience=PATIENCE_SECONDS, say=say
        ):
            if not _is_made(path):
                _create(path, artifacts)
            elif not (schema := _read_schema(path)).is_current:
                _upgrade(path, schema, artifacts, say)
    except OSError as error:
        raise TrackingError(
            f"tracking store {path}: cannot be created ({cause(error)}); name a file in a folder of your own in tracking.uri "
            "or MLFLOW_TRACKING_URI"
        ) from error


def refuse_incomplete(path: Path) -> None:
    """Refuse a store that claims the current schema and lacks tables: MLflow would try to create it again in place.

    Raises:
        TrackingError: names the file and what to do.
    """
    from mlflow.store.db.utils import Base

    missing = sorted(set(Base.metadata.tables) - _read_schema(path).tables)
    if missing:
        raise TrackingError(broken(path, f"of MLflow's tables, {', '.join(missing[:3])} {_more(missing)}missing"))


def close_connections(uri: str) -> None:
    """Close what MLflow has open of a store, which another file has replaced; the next request opens the new one."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    if uri in SqlAlchemyStore._engine_map:
        SqlAlchemyStore._engine_map[uri].dispose()


def broken(path: Path, what: str) -> str:
    """Return the message about a store that cannot be used."""
    return f"tracking store {path}: {what}. {_way_out(path)}"


def _more(missing: list[str]) -> str:
    return f"and {len(missing) - 3} more are " if len(missing) > 3 else "are " if len(missing) > 1 else "is "


def _way_out(path: Path) -> str:
    """Return what to do about a store that cannot be used."""
    aside = free_name(path.with_name(f"{path.name}.broken"))
    return (
        f"Move it away with `mv {shlex.quote(str(path))} {shlex.quote(str(aside))}` and start again: a new one is made. Runs "
        "keep their own journals: `grpo track RUN_DIR` then logs an earlier run to the new store"
    )


def _is_made(path: Path) -> bool:
    """Return whether there is a store; a file without a byte is what a process leaves that was killed before it began."""
    return path.exists() and not (path.is_file() and path.stat().st_size == 0)


def _read_schema(path: Path) -> Schema:
    """Read what a SQLite file holds, in a millisecond, without MLflow.

    Raises:
        TrackingError: it cannot be read.
    """
    try:
        # `rw` without `c`: never created here, but what a killed writer has left in its `-journal` is rolled back.
        with contextlib.closing(_connect(path)) as connection:
            tables = frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
            rows = connection.execute("SELECT version_num FROM alembic_version") if "alembic_version" in tables else ()
            return Schema(tables=tables, revisions=tuple(str(revision) for (revision,) in rows))
    except sqlite3.Error as error:
        raise TrackingError(_unreadable(path, error)) from error


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _unreadable(path: Path, error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return (
            f"tracking store {path}: another program has kept it locked for {BUSY_SECONDS:.0f} s; end that program "
            f"(`fuser {shlex.quote(str(path))}` names it), or wait for it, and start again"
        )
    if isinstance(error, sqlite3.OperationalError) and "unable to open" in str(error):
        return f"tracking store {path}: cannot be opened; it must be a file that you may read and write, in a folder likewise"
    return broken(path, f"the file is damaged or no SQLite database ({cause(error)})")


def _create(path: Path, artifacts: str) -> None:
    """Create a store whole or not at all; whoever waits for the lock finds it ready."""
    try:
        with _partial(path) as partial:
            _complete(partial, artifacts)
            partial.replace(path)
    except OSError:
        raise
    except Exception as error:
        raise TrackingError(f"tracking store {path}: cannot be created ({cause(error)})") from error


def _upgrade(path: Path, schema: Schema, artifacts: str, say: Callable[[str], None]) -> None:
    """Bring a store to the schema of this MLflow, in a copy: if that fails, the file is as it was.

    Raises:
        TrackingError: it cannot be upgraded.
    """
    head, known = _history()
    installed = f"MLflow {version('mlflow')}"
    if not set(schema.revisions) <= known:
        raise TrackingError(
            f"tracking store {path}: was made by another version of MLflow (schema {name_of(schema.revisions[0])}, which "
            f"{installed} does not know). Use that version, or: {_way_out(path)}"
        )
    aside = free_name(path.with_name(f"{path.name}.before-{head}"))
    try:
        with (
            _partial(path) as partial,
            contextlib.closing(_connect(path)) as held,
            contextlib.closing(_connect(path)) as source,
        ):
            held.execute("BEGIN IMMEDIATE")  # whoever writes waits; after the renaming SQLite refuses to write to the old file
            with contextlib.closing(sqlite3.connect(partial)) as copy:
                source.backup(copy)
            _complete(partial, artifacts)
            os.link(path, aside)
            partial.replace(path)
    except sqlite3.Error as error:
        raise TrackingError(_unreadable(path, error)) from error
    except OSError:
        raise
    except Exception as error:
        half = f"schema {schema.revisions[0]}" if len(schema.revisions) == 1 else f"{len(schema.revisions)} schema versions"
        raise TrackingError(
            broken(path, f"it holds half a migration ({half}), and {installed} cannot complete it ({cause(error, most=150)})")
        ) from error
    say(f"upgraded the tracking store {path} to {installed}; the file as it was is {aside}, which you may delete")


def _complete(partial: Path, artifacts: str) -> None:
    """Bring a file that nobody else knows to the schema of this MLflow, with the experiment `Default`."""
    from mlflow.store.db import utils
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    uri = f"sqlite:///{partial}"
    engine = utils.create_sqlalchemy_engine(uri)
    try:
        if utils._get_schema_version(engine) is None:
            utils._initialize_tables(engine)
        else:
            utils._upgrade_db(engine)
    finally:
        engine.dispose()
    store = SqlAlchemyStore(uri, artifacts)  # checks the schema
    store._dispose_engine()
    SqlAlchemyStore._engine_map.pop(uri, None)  # the next file of this name is another one
    refuse_incomplete(partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Yield the file in which a store is made; what an earlier process, or what is inside, has left there is removed."""
    partial = path.with_name(f".{path.name}.partial")
    with contextlib.ExitStack() as leftovers:
        for file in (partial, partial.with_name(f"{partial.name}-journal")):
            file.unlink(missing_ok=True)
            leftovers.callback(file.unlink, missing_ok=True)
        yield partial


@cache
def _history() -> tuple[str, set[str]]:
    """Return (the newest revision, all revisions) of the installed MLflow's migrations, without importing it."""
    known, (newest,) = revisions(Path(str(distribution("mlflow").locate_file("mlflow/store/db_migrations/versions"))))
    return newest, known
