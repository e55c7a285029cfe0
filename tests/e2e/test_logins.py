"""A login goes to its own server and nowhere else, whatever a folder, a file or another server names."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.run.folder import RunDir
from tests.e2e.recorder import Recorder, recording
from tests.torture.servers import MlflowServer

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

USER, PASSWORD, TOKEN, NETRC = "victim", "hunter2-canary-1", "token-canary-2", "netrc-canary-3"
COMMANDS: dict[str, list[str]] = {
    "report": ["report", "RUN"],
    "track": ["track", "RUN"],
    "export --register": ["export", "RUN", "--register", "mine", "--to", "export"],
    "train --resume": ["train", "--resume", "RUN"],
    "--repair": ["train", "--resume", "RUN", "--repair", "cut"],
}
Grpo = Callable[..., Any]


@pytest.fixture
def foreign() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


@pytest.fixture
def victim(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody with logins of every kind, all of them for another server."""
    home = tmp_path / "home"
    (home / ".mlflow").mkdir(parents=True)
    (home / ".mlflow" / "credentials").write_text(
        f"[mlflow]\nmlflow_tracking_username = {USER}\nmlflow_tracking_password = {PASSWORD}\n"
    )
    (home / "netrc").write_text(f"machine 127.0.0.1 login {USER} password {NETRC}\n")
    (home / "netrc").chmod(0o600)
    cache = {name: os.environ[name] for name in ("GRPO_CACHE",) if name in os.environ}
    return {**cache, "HOME": str(home), "NETRC": str(home / "netrc"), "MLFLOW_TRACKING_TOKEN": TOKEN}


def copy_of(run: Path, folder: Path, uri: str) -> Path:
    """Return a copy of a run that says that it is tracked at an address."""
    target = folder / "received" / "run"
    shutil.copytree(run, target)
    (target / "summary.json").unlink()  # so that there is something to resume
    facts = json.loads((target / "tracking.json").read_text())
    (target / "tracking.json").write_text(json.dumps({**facts, "uri": uri}))
    return target


def state_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def typed(command: str, run: Path) -> list[str]:
    return [str(run) if word == "RUN" else word for word in COMMANDS[command]]


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_folder_that_names_another_server_is_refused_and_nothing_is_sent_or_written(
    grpo: Grpo, finished_run: tuple[Path, Any], foreign: Recorder, victim: dict[str, str], tmp_path: Path, command: str
) -> None:
    run = copy_of(finished_run[0], tmp_path, foreign.address.upper() if command == "report" else foreign.address)
    before = state_of(run)
    own = {} if command == "track" else {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    login = {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": PASSWORD}
    done = grpo(*typed(command, run), cwd=tmp_path, **victim, **login, **own)
    assert done.returncode != 0
    assert "its tracking.json names" in done.stderr
    assert "--tracking-uri" in done.stderr
    assert foreign.requests == []
    changed = {name for name, content in state_of(run).items() if before.get(name) != content}
    assert changed <= {"lock", "flow_run"}, changed
    assert not (tmp_path / "export").exists()


def test_a_configuration_in_a_folder_counts_as_its_tracking_file_does(
    grpo: Grpo, finished_run: tuple[Path, Any], foreign: Recorder, victim: dict[str, str], tmp_path: Path
) -> None:
    run = copy_of(finished_run[0], tmp_path, foreign.address)
    (run / "tracking.json").unlink()
    values = json.loads((run / "config.json").read_text())
    values["tracking"]["uri"] = foreign.address
    (run / "config.json").write_text(json.dumps(values))
    done = grpo("train", "--resume", str(run), cwd=tmp_path, **victim)
    assert done.returncode != 0
    assert f"its config.json names {foreign.address}" in done.stderr
    assert foreign.requests == []


@pytest.mark.parametrize("verb", [pytest.param("evaluate", marks=pytest.mark.slow), "reproduce"])
def test_what_is_made_of_a_received_run_is_tracked_where_this_environment_says(
    grpo: Grpo, finished_run: tuple[Path, Any], tmp_path: Path, verb: str
) -> None:
    config = tmp_path / "theirs.yaml"
    config.write_text(
        yaml.safe_dump(
            RunDir(finished_run[0]).read_config().model_dump(mode="json") | {"tracking": {"uri": "sqlite:///theirs.db"}}
        )
    )
    done = grpo(
        "train", str(config), "training.steps=1", "evaluation.every_steps=null", "--run-dir", "theirs/run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "theirs.db").unlink()
    done = grpo(verb, "theirs/run", "--run-dir", "runs/mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tracked = json.loads((tmp_path / "runs" / "mine" / "tracking.json").read_text())
    assert tracked["uri"] == f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}"
    assert not (tmp_path / "theirs.db").exists()


@pytest.mark.parametrize("name", ["elsewhere/mlflow.db", "received/run/mlflow.db"])
def test_no_database_is_made_where_a_folder_names_one(
    grpo: Grpo, finished_run: tuple[Path, Any], tmp_path: Path, name: str
) -> None:
    store = tmp_path / name
    run = copy_of(finished_run[0], tmp_path, f"sqlite:///{store}")
    store.parent.mkdir(exist_ok=True)
    done = grpo("track", str(run), cwd=tmp_path)
    assert done.returncode != 0
    assert f"names sqlite:///{store}" in done.stderr
    assert not store.exists()
    store.write_bytes(b"")  # an empty file is a database without tables
    assert grpo("track", str(run), cwd=tmp_path).returncode != 0
    assert store.read_bytes() == b""


def test_a_store_beside_the_run_that_names_a_folder_elsewhere_for_its_artifacts_writes_nothing_there(
    grpo: Grpo, finished_run: tuple[Path, Any], tmp_path: Path
) -> None:
    """A received folder with its store: the runs lie where the stranger's did not, or where he wants them."""
    from sqlalchemy import create_engine, text

    library = tmp_path / "home" / "library"
    library.mkdir(parents=True)
    shutil.copytree(finished_run[0].parent, tmp_path / "received")
    run, store = tmp_path / "received" / finished_run[0].name, tmp_path / "received" / "mlflow.db"
    facts = json.loads((run / "tracking.json").read_text())
    (run / "tracking.json").write_text(json.dumps({**facts, "uri": f"sqlite:///{store}"}))
    engine = create_engine(f"sqlite:///{store}")
    with engine.begin() as connection:
        connection.execute(text("update runs set artifact_uri = :uri"), {"uri": library.as_uri()})
        connection.execute(text("update tags set value = '/where/the/stranger/ran/it' where key = 'run_dir'"))
    engine.dispose()
    done = grpo("report", str(run), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"artifact address {library.as_uri()}: is a folder of this machine" in done.stderr
    assert list(library.iterdir()) == []
    done = grpo("report", str(run), cwd=tmp_path, MLFLOW_TRACKING_URI=f"sqlite:///{store}")  # the owner says that it is his
    assert (library / "index.html").is_file(), done.stderr


@pytest.fixture(scope="module")
def served_run(grpo: Grpo, tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Recorder]]:
    """(a run that a server tracks, that server: a recorder before a real one)."""
    folder = tmp_path_factory.mktemp("served")
    server = MlflowServer(folder / "mlflow")
    server.start()
    try:
        with recording() as recorder:
            recorder.behind = server.address
            done = grpo("train", str(tiny_yaml), "--run-dir", "runs/one", cwd=folder, MLFLOW_TRACKING_URI=recorder.address)
            assert done.returncode == 0, done.stderr
            yield folder / "runs" / "one", recorder
    finally:
        server.kill()


@pytest.fixture
def served(served_run: tuple[Path, Recorder]) -> Iterator[tuple[Path, Recorder]]:
    run, recorder = served_run
    recorder.requests.clear()
    yield run, recorder
    recorder.artifacts = recorder.redirect = ""


@pytest.fixture
def received(served: tuple[Path, Recorder], tmp_path: Path) -> Iterator[Path]:
    """The run, moved from where it was made: a copy beside it would get an MLflow run of its own."""
    run = Path(shutil.move(served[0], tmp_path / "run"))
    yield run
    shutil.move(run, served[0])


@pytest.mark.parametrize(
    "command",
    ["report", "train --resume", *(pytest.param(one, marks=pytest.mark.slow) for one in ("track", "export --register"))],
)
def test_a_confirmed_server_is_used_without_a_login_and_may_name_no_folder_here(
    grpo: Grpo, served: tuple[Path, Recorder], received: Path, victim: dict[str, str], tmp_path: Path, command: str
) -> None:
    run, recorder = received, served[1]
    environment = {**victim, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    words = [*typed(command, run), "--tracking-uri", recorder.address]
    in_capitals = "HTTP" + recorder.address.removeprefix("http")
    for uri in (in_capitals, recorder.address) if command == "report" else (recorder.address,):
        library = tmp_path / "library"
        library.mkdir(exist_ok=True)
        recorder.artifacts = str(library) if uri.startswith("http") else library.as_uri()
        facts = json.loads((run / "tracking.json").read_text())
        (run / "tracking.json").write_text(json.dumps({**facts, "uri": uri}))
        (run / "summary.json").unlink(missing_ok=True)  # so that there is something to resume
        done = grpo(*words, cwd=tmp_path, **environment)
        assert "is a folder of this machine" in done.stderr + done.stdout
        assert list(library.iterdir()) == []
    recorder.artifacts = ""
    shutil.rmtree(tmp_path / "export", ignore_errors=True)
    (run / "summary.json").unlink(missing_ok=True)
    done = grpo(*words, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert recorder.logins == {""}


def test_no_login_follows_to_where_the_own_server_sends_a_client(
    grpo: Grpo, served: tuple[Path, Recorder], foreign: Recorder, victim: dict[str, str], tmp_path: Path
) -> None:
    run, recorder = served
    environment = {**victim, "MLFLOW_TRACKING_URI": recorder.address}
    foreign.behind = recorder.behind
    recorder.artifacts = f"mlflow-artifacts://{foreign.address.removeprefix('http://')}/somewhere"
    grpo("report", str(run), cwd=tmp_path, **environment)
    assert foreign.requests
    assert foreign.logins == {""}
    foreign.requests.clear()
    recorder.artifacts, recorder.redirect = "", foreign.address
    done = grpo("track", str(run), cwd=tmp_path, **environment)
    assert done.returncode != 0
    assert foreign.requests == []
