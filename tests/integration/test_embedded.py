"""The embedded Prefect server: private, deaf to signals, and gone with its command, however and whenever that ends."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

ROOT = Path(__file__).parents[2]
MARK = "GRPO_TEST_MARK"
COMMAND = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
from flows.stack.embedded import start_embedded_server
print("begins", flush=True)
start_embedded_server()
if "fork" in sys.argv and os.fork() == 0:
    os.environ.clear()
    time.sleep(60)
    os._exit(0)
print(os.environ["PREFECT_API_URL"], os.environ["PREFECT_API_AUTH_STRING"], flush=True)
sys.stdin.read()
"""
FLOW = """
from flows.stack.embedded import start_embedded_server
start_embedded_server()
import prefect
@prefect.flow
def double(x):
    return 2 * x
print("answer", double(21))
"""


class Command:
    """A command with an embedded server, in a session of its own as at a terminal."""

    def __init__(self, home: Path, *arguments: str, code: str = COMMAND, **variables: str) -> None:
        self.mark = f"{home}-{time.monotonic_ns()}"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        quiet = {"PREFECT_LOGGING_LEVEL": "CRITICAL", "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**kept, **quiet, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(home), MARK: self.mark, **variables},
            start_new_session=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ready(self) -> tuple[str, str]:
        assert self.line() == "begins"
        found = self.line()
        assert found, self.process.stderr and self.process.stderr.read()
        address, _, secret = found.partition(" ")
        return address, secret

    def family(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != self.process.pid and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def leaves_nothing(self, seconds: float = 30) -> bool:
        deadline = time.monotonic() + seconds
        while (left := self.family()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return not left


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "prefect"


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        for process in command.family():
            process.kill()
        command.process.kill()
        for stream in (command.process.stdin, command.process.stdout, command.process.stderr):
            if stream is not None:
                stream.close()
        command.process.wait()


def _ask(address: str, secret: str | None, **headers: str) -> httpx.Response:
    auth = httpx.BasicAuth(*secret.split(":")) if secret else None
    return httpx.post(f"{address}/flow_runs/filter", json={}, auth=auth, headers=headers, timeout=60)


@pytest.mark.proof
def test_it_is_private_survives_signals_and_ends_with_a_killed_command(home: Path, commands: list[Command]) -> None:
    command = Command(home, "fork")
    commands.append(command)
    address, secret = command.ready()

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/api", address)
    asked = [_ask(address, key) for key in (secret, None, "grpo:x", f"{secret}x")]
    assert [answer.status_code for answer in asked] == [200, 401, 401, 401]
    assert _ask(address, secret, Host="evil.example").status_code == 403
    assert _ask(address, secret, Origin="https://evil.example").status_code == 403
    (server,) = (process for process in command.family() if "flows.stack.embedded" in process.cmdline())
    assert len(secret) >= 32
    assert secret.partition(":")[2] not in " ".join(server.cmdline())
    assert [path for path in home.iterdir() if path.stat().st_mode & 0o077] == []

    for number in (signal.SIGINT, signal.SIGTERM):
        os.killpg(command.process.pid, number)  # a terminal's Ctrl-C; `timeout` and Slurm
        server.send_signal(number)  # a batch system that signals each process of the job
    time.sleep(1)
    assert _ask(address, secret).is_success

    command.process.kill()  # its fork lives on, with copies of its open files
    server.wait(30)
    with pytest.raises(httpx.ConnectError):
        _ask(address, secret)


@pytest.mark.proof
@pytest.mark.parametrize("seconds", [0.0, 1.5])
def test_a_command_killed_during_the_start_leaves_no_server(home: Path, commands: list[Command], seconds: float) -> None:
    command = Command(home)
    commands.append(command)
    assert command.line() == "begins"
    while not command.family():
        time.sleep(0.01)
    time.sleep(seconds)
    command.process.kill()
    assert command.leaves_nothing()


@pytest.mark.proof
def test_a_flow_runs_in_it_and_its_history_stays(home: Path, commands: list[Command]) -> None:
    command = Command(home, code=FLOW, http_proxy="http://127.0.0.1:9")  # which must neither be asked nor see the secret
    commands.append(command)
    out, err = command.process.communicate(timeout=240)
    assert (command.process.returncode, out) == (0, "answer 42\n"), err
    assert command.leaves_nothing(0)
    again = Command(home)
    commands.append(again)
    assert [run["state_name"] for run in _ask(*again.ready()).json()] == ["Completed"]
    again.process.communicate(timeout=60)  # its natural end
    assert again.leaves_nothing(0)


@pytest.mark.proof
def test_first_starts_at_once_share_an_empty_home(home: Path, commands: list[Command]) -> None:
    commands += [Command(home) for _ in range(3)]
    assert [_ask(*command.ready()).status_code for command in commands] == [200] * 3


@pytest.mark.proof
def test_a_server_that_cannot_start_says_why_and_what_to_do(home: Path, commands: list[Command]) -> None:
    database = "postgresql+asyncpg://someone:pass-word@127.0.0.1:9/prefect"
    command = Command(home, PREFECT_API_DATABASE_CONNECTION_URL=database)
    commands.append(command)
    _, err = command.process.communicate(timeout=240)
    assert re.search(r"StackError: the embedded Prefect server does not start", err)
    assert re.search(r"ConnectionRefusedError|Connect call failed", err)
    assert "PREFECT_API_URL" in err
    assert "pass-word" not in err
    assert command.leaves_nothing(0)
