"""The folder of a stack and its secret: closed to others, never made of somebody else's folder."""

import functools
import http.server
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flows.stack.control import end_stack
from flows.stack.servers import use_stack, write_client_settings
from flows.stack.services import MARK, SERVICE, conditions, end_processes, marked_processes, start_process
from flows.stack.state import Stack, claim_folder, read_stack
from grpo_core.errors import StackError

# These processes outlive the objects that started them; that is what they are for.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


def mode(path: Path) -> int:
    """Return who may do what with a file."""
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


def start(stack: Stack, service: str) -> None:
    """Start a process that passes for a service."""
    start_process(SLEEPER, {**os.environ, MARK: str(stack.folder), SERVICE: service}, stack.log_file(service))


def test_a_new_folder_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / ".grpo"
    claim_folder(folder)
    assert mode(folder) == 0o700
    (folder / "notes.txt").touch()  # it is marked; its owner may keep things there
    claim_folder(folder)


@pytest.mark.parametrize("contents", [["notes.txt"], ["logs"], [".hidden"]])
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, contents: list[str]) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir(mode=0o755)
    for name in contents:
        (folder / name).touch()
    with pytest.raises(StackError, match=r"is not empty and holds no stack"):
        claim_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(contents)
    assert mode(folder) == 0o755


COMMANDS = [claim_folder, read_stack, lambda folder: end_stack(folder, 0, print)]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_is_refused_by_every_command(tmp_path: Path, command: Callable[[Path], object]) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / ".grpo").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StackError, match=r"is a link, a file or another user's"):
        command(tmp_path / ".grpo")
    assert mode(tmp_path / "elsewhere") == 0o755


@as_root
@pytest.mark.parametrize("command", COMMANDS)
def test_the_folder_of_another_user_is_refused_by_every_command(tmp_path: Path, command: Callable[[Path], object]) -> None:
    (tmp_path / ".grpo").mkdir()
    os.chown(tmp_path / ".grpo", 12345, 12345)
    with pytest.raises(StackError, match=r"is a link, a file or another user's"):
        command(tmp_path / ".grpo")


def test_a_secret_is_made_once_and_only_its_owner_can_read_it(stack: Stack) -> None:
    before = os.umask(0)
    try:
        secret = stack.secret
    finally:
        os.umask(before)
    assert len(secret) >= 32
    assert mode(stack.secret_file) == 0o600
    assert mode(stack.secret_file.parent) == 0o700
    assert stack.secret == secret


def test_the_settings_file_holds_the_secret_for_its_owner_alone(stack: Stack) -> None:
    settings = stack.project / "prefect.toml"
    write_client_settings(stack)
    settings.chmod(0o644)
    write_client_settings(stack)
    assert mode(settings) == 0o600
    assert f'auth_string = "{stack.secret}"' in settings.read_text()


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
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "health").write_text("OK")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack = Stack(**{**vars(stack), "mlflow_port": server.server_address[1]})
        start(stack, "mlflow")
        assert conditions(stack)["mlflow"][0] == "not ready"
        monkeypatch.setattr("flows.stack.services.service_processes", lambda _: {"mlflow": [psutil.Process()]})
        assert conditions(stack)["mlflow"][0] == "ready"
        server.shutdown()
