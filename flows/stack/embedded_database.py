"""Prefect's SQLite database: made and migrated by one server at a time, examined before a server opens it.

Servers that create or migrate one file at the same time leave half a migration behind, which no later start can mend. So a
server is started under a lock until it has opened a database that is not at the newest revision yet.
"""

import contextlib
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import prefect
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, PREFECT_HOME

from grpo_core.errors import BusyError, StackError
from grpo_core.machine.disk import FOLDER_MODE
from grpo_core.machine.locks import waited_lock
from grpo_core.machine.sqlite import revisions

SQLITE_URL = re.compile(r"sqlite(\+\w+)?:///(?P<path>[^?]+)")
OPEN_SECONDS = 5.0
WAIT_SECONDS = 600.0
HEADER_BYTES = 100


class Condition(Enum):
    """What a server would find."""

    CURRENT = "current"
    """At the newest revision: any number of servers may open it."""
    OUTDATED = "outdated"
    """Of an older Prefect, or left in the middle of a migration: to be migrated by one server alone."""
    MISSING = "missing"
    """To be created, by one server alone."""


def database_file() -> Path | None:
    """Return the file of Prefect's database; None where it is a server, or in memory."""
    found = SQLITE_URL.fullmatch(str(PREFECT_API_DATABASE_CONNECTION_URL.value() or "").partition("?")[0])
    return None if found is None or ":memory:" in found["path"] else Path(found["path"])


def examine(file: Path) -> Condition:
    """Return the condition of Prefect's database, known from its revision.

    Raises:
        StackError: it is damaged, of a newer Prefect, or cannot be opened.
    """
    try:
        if not file.exists() or file.stat().st_size == 0:
            return Condition.MISSING
        with contextlib.closing(
            sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=OPEN_SECONDS)
        ) as database:
            _check_pages(file, database)
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
                if table := database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchone():
                    raise StackError(damaged(file, f"it has the table {table[0]} and no revision"))
                return Condition.MISSING
            found = {row[0] for row in database.execute("SELECT version_num FROM alembic_version")}
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return Condition.OUTDATED  # somebody writes: be careful
        raise StackError(f"{file}: Prefect's database cannot be opened ({error}); {_other_home()}") from error
    except sqlite3.DatabaseError as error:
        raise StackError(damaged(file, str(error))) from error
    except OSError as error:
        raise StackError(f"{file}: Prefect's database cannot be read ({error.strerror}); {_other_home()}") from error
    known, newest = revisions(Path(prefect.__file__).parent / "server" / "database" / "_migrations" / "versions" / "sqlite")
    if found - known and known:
        raise StackError(
            f"{file}: Prefect's database has revision {', '.join(sorted(found - known))}, which Prefect {prefect.__version__} "
            f"does not know: a newer Prefect has written it; install that one again, or {_other_home()}"
        )
    return Condition.CURRENT if found and found == newest else Condition.OUTDATED


def damaged(file: Path, cause: str) -> str:
    """Return the message for a database that no server can use, with the remedy."""
    return (
        f"{file}: Prefect's database is damaged ({cause}); move it away (mv {file} {file}.damaged, and {file.name}-wal and "
        f"{file.name}-shm with it) and start again: a new one is made, and only the history of flow runs in Prefect's UI is "
        f"lost; runs, journals and MLflow keep everything. Or {_other_home()}"
    )


@contextlib.contextmanager
def migration_lock(file: Path, show: Callable[[str], None]) -> Iterator[int]:
    """Hold the lock of Prefect's database and yield its file descriptor; a process that inherits it holds the lock, too.

    Raises:
        StackError: the folder cannot be written, or another process holds the lock for more than 10 minutes.
    """
    path = file.with_name(f"{file.name}.lock")
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
            lock = held.enter_context(
                waited_lock(path, "makes or migrates Prefect's database", patience=WAIT_SECONDS, say=show)
            )
        except BusyError as error:
            raise StackError(f"{error}; or {_other_home()}") from error
        except OSError as error:
            raise StackError(f"{path}: cannot be written ({error.strerror}); {_other_home()}") from error
        yield lock.fileno()


def _check_pages(file: Path, database: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` if the file is shorter than its header says and SQLite finds pages missing.

    Reading a revision alone would not find the cut. With a log of changes beside it a short file may be whole.
    """
    with file.open("rb") as opened:
        header = opened.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise sqlite3.DatabaseError(f"{len(header)} bytes")
    page = struct.unpack(">H", header[16:18])[0]
    expected = (65536 if page == 1 else page) * struct.unpack(">I", header[28:32])[0]
    if file.stat().st_size < expected:
        verdict = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"{file.stat().st_size} of {expected} bytes: {verdict}")


def _other_home() -> str:
    return f"set PREFECT_HOME (now {PREFECT_HOME.value()}) to another folder"
