"""The folder of a stack and its secret: closed to others, kept from older versions, never made of somebody else's folder."""

import functools
import http.server
import os
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.stack.control import Wanted, end_stack, start_stack
from flows.stack.processes import MARK, identify, is_alive, listens, start_process
from flows.stack.servers import folder_here, is_for, use_stack, write_client_settings
from flows.stack.services import MLFLOW
from flows.stack.state import Stack, claim_folder, ensure_secret, prefect_client, read_secret, read_stack, secret_file
from grpo_core.errors import StackError

# These processes outlive the objects that started them; that is what they are for.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


def mode(path: Path) -> int:
    """Return who may do what with a file."""
    return stat.S_IMODE(path.stat().st_mode)


def older(folder: Path) -> Path:
    """Make the folder that `grpo up` of the version before left behind, for everybody to read."""
    (folder / "logs").mkdir(parents=True)
    for name in ("prefect", "mlflow", "slots"):
        (folder / name).mkdir()
    (folder / "lock").touch()
    (folder / "prefect" / "prefect.db").write_text("runs")
    folder.chmod(0o755)
    return folder


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A stack that is planned here; nothing of it runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prefect.yaml").touch()
    return Stack(folder=tmp_path / ".grpo", prefect_port=4207, mlflow_port=5007, slots=1, project=tmp_path)


def test_a_new_folder_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / ".grpo"
    claim_folder(folder)
    assert mode(folder) == 0o700
    claim_folder(folder)


def test_the_folder_of_an_older_version_is_closed_and_kept(tmp_path: Path) -> None:
    folder = older(tmp_path / ".grpo")
    claim_folder(folder)
    assert mode(folder) == 0o700
    assert (folder / "prefect" / "prefect.db").read_text() == "runs"
    (folder / "notes.txt").touch()  # it is marked now; its owner may keep things there
    claim_folder(folder)


@pytest.mark.parametrize("contents", [["notes.txt"], ["logs"], ["lock", "logs", "notes.txt"], [".hidden"]])
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, contents: list[str]) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir(mode=0o755)
    for name in contents:
        (folder / name).touch()
    with pytest.raises(StackError, match=r"is not empty and holds no stack .*; give `--folder` a new or empty folder"):
        claim_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(contents)
    assert mode(folder) == 0o755


def test_down_makes_nothing_in_a_folder_without_a_stack(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert not end_stack(tmp_path, 0, print)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("command", [claim_folder, read_stack, lambda folder: end_stack(folder, 0, print)])
def test_a_link_is_refused_by_every_command(tmp_path: Path, command: Callable[[Path], object]) -> None:
    older(tmp_path / "elsewhere")
    (tmp_path / ".grpo").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StackError, match=r"\.grpo: is a link to .*elsewhere"):
        command(tmp_path / ".grpo")
    assert mode(tmp_path / "elsewhere") == 0o755


@as_root
@pytest.mark.parametrize("command", [claim_folder, read_stack, lambda folder: end_stack(folder, 0, print)])
def test_the_folder_of_another_user_is_refused_by_every_command(tmp_path: Path, command: Callable[[Path], object]) -> None:
    folder = older(tmp_path / ".grpo")
    os.chown(folder, 12345, 12345)
    with pytest.raises(StackError, match=r"belongs to another user \(uid 12345\)"):
        command(folder)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".grpo").touch()
    with pytest.raises(StackError, match="is a file"):
        claim_folder(tmp_path / ".grpo")


def test_two_that_claim_a_folder_at_once_both_have_it(tmp_path: Path) -> None:
    claims = "from pathlib import Path; from flows.stack.state import claim_folder\n"
    claims += f"for number in range(200): claim_folder(Path({str(tmp_path)!r}) / str(number))"
    both = [subprocess.Popen([sys.executable, "-c", claims], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate()[1], process.returncode) for process in both] == [("", 0)] * 2


def test_a_claim_that_was_killed_in_the_middle_is_finished_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".grpo-stack.1.partial").touch()
    claim_folder(tmp_path)
    assert (tmp_path / "grpo-stack").is_file()


def test_a_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    assert read_secret(tmp_path) is None
    before = os.umask(0)
    try:
        ensure_secret(tmp_path)
    finally:
        os.umask(before)
    secret = read_secret(tmp_path)
    assert secret is not None
    assert len(secret) >= 32
    assert mode(secret_file(tmp_path)) == 0o600
    assert mode(secret_file(tmp_path).parent) == 0o700
    ensure_secret(tmp_path)
    assert read_secret(tmp_path) == secret
    ensure_secret(tmp_path / "another")
    assert read_secret(tmp_path / "another") != secret


@pytest.mark.parametrize("damage", ["empty", "short", "binary", "readable", "link"])
def test_a_secret_that_cannot_be_trusted_is_made_again(tmp_path: Path, damage: str) -> None:
    ensure_secret(tmp_path)
    file, before = secret_file(tmp_path), read_secret(tmp_path)
    contents = {"empty": b"", "short": b"a:b", "binary": b"\xff\n" * 40}
    if damage in contents:
        file.write_bytes(contents[damage])
    elif damage == "readable":
        file.chmod(0o644)
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    assert read_secret(tmp_path) is None
    ensure_secret(tmp_path)
    assert read_secret(tmp_path) not in (None, before)
    assert mode(file) == 0o600


def test_the_settings_file_holds_the_secret_for_its_owner_alone(stack: Stack) -> None:
    settings = stack.project / "prefect.toml"
    settings.write_text(
        f'# Written by `grpo up`, removed by `grpo down`: the stack in {stack.folder}\n[api]\nurl = "{stack.api}"\n'
    )
    settings.chmod(0o644)  # as the version before wrote it
    ensure_secret(stack.folder)
    write_client_settings(stack)
    assert mode(settings) == 0o600
    assert f'auth_string = "{read_secret(stack.folder)}"' in settings.read_text()


def test_settings_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prefect.toml").mkdir()  # to root, no file of another user is unreadable
    with pytest.raises(StackError, match=r"prefect\.toml: cannot be read .*; it is for the user alone who has run `grpo up`"):
        folder_here()


def test_a_secret_of_its_owners_choice_is_written_as_it_is(stack: Stack) -> None:
    ensure_secret(stack.folder)
    secret_file(stack.folder).write_text('me:"quoted"\\and-long-enough\n')
    write_client_settings(stack)
    told = tomllib.loads((stack.project / "prefect.toml").read_text())
    assert told["api"] == {"url": stack.api, "auth_string": 'me:"quoted"\\and-long-enough'}


def test_the_secret_is_for_the_stacks_own_api(stack: Stack) -> None:
    assert is_for("http://anywhere/api")  # no stack has written a secret here
    ensure_secret(stack.folder)
    write_client_settings(stack)
    assert is_for(stack.api)
    assert is_for("http://localhost:4207/api/")
    assert not is_for("http://127.0.0.1:4208/api")
    assert not is_for("http://127.0.0.1:4207.evil.example/api")


def test_a_stack_of_an_older_version_that_is_up_is_refused_and_can_be_ended(stack: Stack) -> None:
    older(stack.folder)
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = start_process(sleeper, {**os.environ, MARK: str(stack.folder)}, stack.log_file("prefect"))
    stack.with_process("prefect", process)
    with pytest.raises(StackError, match=r"asks for no secret .*run `grpo down`, then `grpo up`"):
        start_stack(stack.folder, Wanted(), print)
    assert is_alive(process)
    assert read_secret(stack.folder) is None
    assert end_stack(stack.folder, 0, print)
    assert not is_alive(process)


def test_a_command_in_the_folder_of_a_stack_gets_its_secret(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "set")  # so that it is as it was after the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "another server's")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "intranet")
    ensure_secret(stack.folder)
    process = start_process([sys.executable, "-c", "import time; time.sleep(600)"], os.environ, stack.log_file("sleeper"))
    stack = stack.with_process("prefect", process).with_process("mlflow", process)
    try:
        use_stack()
        assert os.environ["PREFECT_API_URL"] == stack.api
        assert os.environ["PREFECT_API_AUTH_STRING"] == read_secret(stack.folder)
        assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "intranet,127.0.0.1"
    finally:
        os.kill(process.pid, 9)


def test_our_client_carries_the_secret_past_any_proxy(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("Authorization")))
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        port = server.server_address[1]
        ensure_secret(stack.folder)
        secret_file(stack.folder).write_text("user:a-long-password\n")
        with prefect_client(Stack(**{**vars(stack), "prefect_port": port}), 10) as client:
            client.get("/flows")
        thread.join()
        assert listens(os.getpid(), port)
    assert seen == [("/api/flows", "Basic dXNlcjphLWxvbmctcGFzc3dvcmQ=")]
    assert not listens(os.getpid(), port)


def test_somebody_else_who_answers_on_mlflows_port_is_not_the_stacks_mlflow(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "health").write_text("OK")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack = Stack(**{**vars(stack), "mlflow_port": server.server_address[1]})
        sleeper = start_process([sys.executable, "-c", "import time; time.sleep(600)"], os.environ, stack.log_file("mlflow"))
        try:
            assert not MLFLOW.healthy(stack.with_process("mlflow", sleeper))
            assert MLFLOW.healthy(stack.with_process("mlflow", identify(os.getpid())))
        finally:
            os.kill(sleeper.pid, 9)
            server.shutdown()
