"""A tracking store in a SQLite file: created once, however many start together; named, with the remedy, where it is broken."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import TrackingError
from grpo_core.machine.disk import read_json
from grpo_core.run.folder import add_alert
from grpo_core.training.__main__ import main
from tasks.tracking import open_tracking
from tasks.tracking.databases import ensure_store, upgrade_schema
from tasks.tracking.store import make_client
from tasks.tracking.training import track_later

ROOT = Path(__file__).parents[2]
OPENS = """
import sys
from pathlib import Path
from tasks.tracking import open_tracking
print("ready", flush=True)
sys.stdin.readline()
print(open_tracking.fn(Path(sys.argv[1])).experiment_id, flush=True)
"""
CREATES = """
import sys
from pathlib import Path
from tasks.tracking.databases import ensure_store
ensure_store(Path(sys.argv[1]))
"""


@pytest.fixture(scope="session")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of this MLflow, to be copied."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    ensure_store(path)
    return path


@pytest.fixture
def store(whole_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(whole_store, tmp_path / "mlflow.db"))


def start(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, text=True, **options)


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.proof
def test_four_runs_that_start_together_in_an_empty_folder_share_one_store_and_one_experiment(
    tiny_run: Callable[..., Any], tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}"
    runs = [tiny_run({"tracking.uri": uri, "tracking.experiment": "together"}, name=f"run-{number}") for number in range(4)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    children = [start(OPENS, str(run.path), **pipes) for run in runs]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"  # the imports of all are done: they begin at the same moment
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    ends = [(child.communicate(), child.returncode) for child in children]
    assert [code for _, code in ends] == [0] * 4, [errors[-800:] for (_, errors), code in ends if code]
    experiments = {output.splitlines()[-1] for (output, _), _ in ends}
    assert len(experiments) == 1
    client = make_client(uri)
    assert len(client.search_runs(list(experiments))) == 4
    assert sorted(experiment.name for experiment in client.search_experiments()) == ["Default", "together"]
    assert {file.name for file in (tmp_path / "runs").iterdir()} == {"mlflow.db", ".mlflow.db.lock"}


@pytest.mark.proof
def test_a_process_that_is_killed_while_it_creates_the_store_leaves_none_and_the_next_one_creates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))  # there is no empty one to be copied
    path = tmp_path / "mlflow.db"
    child = start(CREATES, str(path))
    while not any(file.stat().st_size for file in tmp_path.glob(".mlflow-*.partial")):
        assert child.poll() is None
        assert not path.exists()
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not path.exists()
    assert [experiment.name for experiment in make_client(f"sqlite:///{path}").search_experiments()] == ["Default"]
    ensure_store(tmp_path / "copied.db", "mlflow-artifacts:/")
    (copied,) = make_client(f"sqlite:///{tmp_path / 'copied.db'}").search_experiments()
    assert (copied.name, copied.artifact_location) == ("Default", "mlflow-artifacts:/0")


def text(store: Path) -> None:
    store.write_text("no database\n" * 1000)


def newer(store: Path) -> None:
    change(store, "UPDATE alembic_version SET version_num = 'fedcba987654'")


@pytest.mark.parametrize("damage", [text, newer])
def test_a_store_that_cannot_be_used_is_named_with_the_remedy(
    store: Path, tiny_run: Callable[..., Any], damage: Callable[[Path], None]
) -> None:
    damage(store)
    run = tiny_run({"tracking.uri": f"sqlite:///{store}"})
    with pytest.raises(TrackingError, match=f"tracking store {store}: cannot be used .*Move the file away and start again"):
        open_tracking.fn(run.path)
    store.rename(store.with_name("broken"))
    assert open_tracking.fn(run.path).run_id


@pytest.mark.parametrize("is_server", [False, True], ids=["local", "server"])
def test_the_store_of_an_older_mlflow_is_upgraded(tmp_path: Path, capsys: Any, is_server: bool) -> None:
    from alembic import command
    from mlflow.store.db import utils

    store = tmp_path / "mlflow.db"
    engine = utils.create_sqlalchemy_engine(f"sqlite:///{store}")
    utils.InitialBase.metadata.create_all(engine)
    command.upgrade(utils._get_alembic_config(f"sqlite:///{store}"), "1b5f0d9ad7c1")  # of MLflow 3.2 or so
    engine.dispose()
    change(
        store,
        "INSERT INTO experiments (experiment_id, name, lifecycle_stage) VALUES (7, 'of before', 'active')",
        "INSERT INTO experiment_tags (key, value, experiment_id) VALUES ('kept', 'yes', 7)",
    )
    if is_server:
        upgrade_schema(f"sqlite:///{store}", f"sqlite:///{tmp_path / 'users.db'}")
    assert make_client(f"sqlite:///{store}").get_experiment_by_name("of before").tags == {"kept": "yes"}
    assert (f"upgraded the tracking store {store} to MLflow 3" in capsys.readouterr().out) is not is_server


def test_what_is_tracked_later_imports_nothing_of_the_run_and_has_the_alerts_that_were_written_down(
    tiny_run: Callable[..., Any], store: Path, tmp_path: Path
) -> None:
    rule = {"kind": "custom", "function": "rule_of_a_stranger:judge", "window": 1}
    run_dir = tiny_run({"tracking.uri": f"sqlite:///{store}", "training.steps": 2, "monitor.rules": [rule]})
    run_dir.origin_file.write_text(json.dumps({**read_json(run_dir.origin_file), "import_from": [str(tmp_path / "theirs")]}))
    open_tracking.fn(run_dir.path)
    assert main([str(run_dir.path)]) == 0
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "rule_of_a_stranger.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    add_alert(run_dir, 2, "step 2: rule_of_a_stranger:judge: too long", "custom.rule_of_a_stranger:judge")
    tracked, _, problems = track_later(run_dir.path)
    assert problems == ()
    assert not (tmp_path / "ran").exists()
    tags = make_client(f"sqlite:///{store}").get_run(tracked.run_id).data.tags
    assert tags["alert.custom.rule_of_a_stranger.judge"] == "step 2: rule_of_a_stranger:judge: too long"
