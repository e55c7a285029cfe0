"""The local stack's folder and secret, closed to others; its processes and ports, with real ones."""

import functools
import http.server
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flows.stack.control import end_stack
from flows.stack.servers import use_stack, write_client_settings
from flows.stack.services import (
    MARK,
    SERVICE,
    choose_port,
    conditions,
    end_processes,
    marked_processes,
    run_processes,
    service_processes,
    start_process,
)
from flows.stack.state import Stack, claim_folder, read_stack
from grpo_core.errors import StackError
from tasks.process.context import FLOW_RUN_VARIABLE

# These processes outlive the objects that started them; that is what they are for.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

SLEEPER = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"]
COMMANDS = [claim_folder, read_stack, lambda folder: end_stack(folder, 0)]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A stack that is planned here; nothing of it runs at first, nor afterwards."""
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI", "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "set")  # so that it is as it was after the test
        monkeypatch.delenv(name)
    stack = Stack(folder=tmp_path / ".grpo", prefect_port=4207, mlflow_port=5007, project=tmp_path)
    claim_folder(stack.folder)
    yield stack
    end_processes(marked_processes(stack.folder), 5)


def start(stack: Stack, service: str, command: list[str] = SLEEPER, **variables: str) -> None:
    """Start a process that passes for one of the stack, and wait until it is at work."""
    log = stack.log_file(f"{service}{len(variables)}")
    start_process(command, {**os.environ, MARK: str(stack.folder), SERVICE: service, **variables}, log)
    while "ready" not in log.read_text():
        time.sleep(0.02)


def test_a_new_folder_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / ".grpo"
    claim_folder(folder)
    assert mode(folder) == 0o700
    (folder / "notes.txt").touch()  # it is marked; its owner may keep things there
    claim_folder(folder)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    with pytest.raises(StackError, match=r"is not empty and holds no stack"):
        claim_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".hidden"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_is_refused_by_every_command(tmp_path: Path, command: Callable[[Path], object]) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / ".grpo").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StackError, match=r"is a link, a file or another user's"):
        command(tmp_path / ".grpo")
    assert mode(tmp_path / "elsewhere") == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_folder_of_another_user_is_refused_by_every_command(tmp_path: Path, command: Callable[[Path], object]) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(StackError, match=r"is a link, a file or another user's"):
        command(tmp_path)


def test_the_secret_and_the_settings_that_hold_it_are_their_owners_alone(stack: Stack) -> None:
    before = os.umask(0)
    try:
        secret = stack.secret
        write_client_settings(stack)
    finally:
        os.umask(before)
    settings = stack.project / "prefect.toml"
    assert len(secret) >= 32
    assert stack.secret == secret
    assert f'auth_string = "{secret}"' in settings.read_text()
    assert [mode(path) for path in (stack.secret_file, stack.secret_file.parent, settings)] == [0o600, 0o700, 0o600]


def test_settings_of_the_users_own_are_not_written_over(stack: Stack) -> None:
    (stack.project / "prefect.toml").write_text("mine")
    with pytest.raises(StackError, match=r"prefect\.toml"):
        write_client_settings(stack)
    assert (stack.project / "prefect.toml").read_text() == "mine"


@pytest.mark.parametrize(("chosen", "is_given"), [("4207/api", True), ("4208/api", False), ("4207.evil.example/api", False)])
def test_the_secret_is_for_the_stacks_own_api(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, chosen: str, is_given: bool
) -> None:
    monkeypatch.setattr("flows.stack.embedded.start_embedded_server", lambda: None)
    stack.write()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    monkeypatch.setenv("PREFECT_API_URL", f"http://localhost:{chosen}")
    use_stack()
    assert ("PREFECT_API_AUTH_STRING" not in os.environ) == is_given  # prefect.toml has it, an empty variable hides that


def test_somebody_else_who_answers_on_mlflows_port_is_not_the_stacks_mlflow(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "health").write_text("OK")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        with pytest.raises(StackError, match=rf"--mlflow-port {port}: is in use"):
            choose_port("mlflow", port, 5000)
        assert choose_port("mlflow", None, port) > port
        stack = Stack(**{**vars(stack), "mlflow_port": port})
        start(stack, "mlflow")
        assert conditions(stack)["mlflow"][0] == "not ready"
        monkeypatch.setattr("flows.stack.services.service_processes", lambda _: {"mlflow": [psutil.Process()]})
        assert conditions(stack)["mlflow"][0] == "ready"
        server.shutdown()


def test_processes_are_found_after_their_parents_death_and_a_runs_are_not_its_workers(stack: Stack) -> None:
    orphan = f"import subprocess; subprocess.Popen({SLEEPER!r}, start_new_session=True)"
    start(stack, "worker", [sys.executable, "-c", orphan])
    start(stack, "worker", **{FLOW_RUN_VARIABLE: "one"})
    (worker,) = psutil.wait_procs(service_processes(stack.folder)["worker"], timeout=1)[1]
    (run,) = run_processes(stack.folder)
    assert worker != run
    end_processes([worker], 5)
    assert list(marked_processes(stack.folder)) == [run]
