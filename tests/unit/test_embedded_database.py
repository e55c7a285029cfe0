"""Prefect's database is examined before a server opens it; a file that no server can use is named with the remedy."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import prefect
import pytest

from flows.stack.embedded_database import Condition, database_file, examine, migration_lock
from grpo_core.errors import StackError
from grpo_core.machine.locks import NOTICE_SECONDS

HOLDER = """
import os, sys, time
from pathlib import Path
from flows.stack.embedded_database import migration_lock
with migration_lock(Path(sys.argv[1]), print):
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


def _database(file: Path, *revisions: str, rows: int = 0) -> Path:
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        database.executemany("INSERT INTO alembic_version VALUES (?)", [(revision,) for revision in revisions])
        database.execute("CREATE TABLE flow_run (name TEXT)")
        database.executemany("INSERT INTO flow_run VALUES (?)", [("x" * 500,) for _ in range(rows)])
    database.close()
    return file


def _newest() -> str:
    """Prefect's own answer, by running its migration scripts' loader."""
    from alembic.script import ScriptDirectory

    folder = Path(prefect.__file__).parent / "server" / "database" / "_migrations"
    head = ScriptDirectory(str(folder), version_locations=[str(folder / "versions" / "sqlite")]).get_current_head()
    assert head is not None
    return head


def test_a_database_at_the_newest_revision_is_current(tmp_path: Path) -> None:
    assert examine(_database(tmp_path / "prefect.db", _newest())) is Condition.CURRENT


@pytest.mark.parametrize("revisions", [(), ("9725c1cbee35",)])
def test_an_older_or_half_migrated_database_is_for_one_server_alone(tmp_path: Path, revisions: tuple[str, ...]) -> None:
    assert examine(_database(tmp_path / "prefect.db", *revisions)) is Condition.OUTDATED


def test_no_file_an_empty_file_and_an_empty_database_are_to_be_filled(tmp_path: Path) -> None:
    file = tmp_path / "prefect.db"
    assert examine(file) is Condition.MISSING
    file.touch()
    assert examine(file) is Condition.MISSING
    sqlite3.connect(file).execute("PRAGMA user_version = 1").connection.close()
    assert examine(file) is Condition.MISSING


def test_a_cut_file_is_damaged_and_the_remedy_is_named(tmp_path: Path) -> None:
    file = _database(tmp_path / "prefect.db", _newest(), rows=200)
    whole = file.read_bytes()
    for kept in (len(whole) // 2, 5000, 60):
        file.write_bytes(whole[:kept])
        with pytest.raises(
            StackError, match=r"prefect\.db: Prefect's database is damaged .* move it away \(mv .*only the history"
        ):
            examine(file)


def test_a_file_of_another_kind_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "prefect.db"
    file.write_text("not a database " * 100)
    with pytest.raises(StackError, match="is damaged"):
        examine(file)
    file.unlink()
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE half (name TEXT)")
    database.close()
    with pytest.raises(StackError, match="it has the table half and no revision"):
        examine(file)


def test_a_database_of_a_newer_prefect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"revision ffffffffffff, which Prefect .* does not know: a newer Prefect"):
        examine(_database(tmp_path / "prefect.db", "ffffffffffff"))


def test_a_database_without_permission_names_the_home(tmp_path: Path) -> None:
    (tmp_path / "prefect.db").mkdir()
    with pytest.raises(StackError, match="set PREFECT_HOME"):
        examine(tmp_path / "prefect.db")
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match="set PREFECT_HOME"), migration_lock(tmp_path / "file" / "prefect.db", print):
        pass


def test_a_database_elsewhere_is_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings

    for address in ("postgresql+asyncpg://u:p@db/prefect", "sqlite+aiosqlite:///file::memory:?cache=shared&uri=true"):
        with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: address}):
            assert database_file() is None
    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: "sqlite+aiosqlite:////data/prefect.db"}):
        assert database_file() == Path("/data/prefect.db")


def test_the_lock_is_owner_only_and_whoever_waits_names_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "home" / "prefect.db"
    root = Path(__file__).parents[2]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(root)}
    )
    assert holder.stdout is not None
    try:
        pid = holder.stdout.readline().strip()
        lock = file.with_name("prefect.db.lock")
        assert lock.stat().st_mode & 0o777 == 0o600
        shown: list[str] = []
        monkeypatch.setattr("grpo_core.machine.locks.NOTICE_SECONDS", 0.0)
        monkeypatch.setattr("flows.stack.embedded_database.WAIT_SECONDS", 0.3)
        with (
            pytest.raises(StackError, match=rf"process {pid}, which makes or migrates .* held this lock .*PREFECT_HOME"),
            migration_lock(file, shown.append),
        ):
            pass
        assert f"waiting for process {pid}" in shown[0]
        assert NOTICE_SECONDS > 0
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with migration_lock(file, print):  # freed by the kernel
        pass
