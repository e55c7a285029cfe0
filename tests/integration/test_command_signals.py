"""What a signal is to a command, inside of a Prefect flow and outside: Ctrl-C, with an exit code that says which one came."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a script
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
import typer
from flows import signals
from flows.signals import ended_like_ctrl_c, ends_when_asked
signals.SAME_REQUEST_SECONDS = 0.5
app = typer.Typer()

def prefect_handler(number, frame):
    raise RuntimeError("Prefect's own handling of a signal")

def wait(name):
    print(name, flush=True)
    time.sleep(60)

@app.command()
def work(how: str):
    if how == "inside":
        before = signal.signal(signal.SIGTERM, prefect_handler)
        ends_when_asked(wait)("ready")
    try:
        wait("ready")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        if how == "closed":
            sys.stderr.write("still alive, and writing\\n")
            sys.stderr.flush()
        if how in ("twice", "once"):
            try:
                time.sleep(0.7 if how == "once" else 60)
            except KeyboardInterrupt:
                print("again", flush=True)
        raise

with ended_like_ctrl_c():
    app()
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts the command and waits until it is at work."""
    processes = []

    def begin(how: str, **options: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(  # type: ignore[call-overload]
            [sys.executable, "-c", COMMAND, how], env={**os.environ, "PYTHONPATH": str(ROOT)}, **options
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


@pytest.mark.parametrize("how", ["inside", "outside"])
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.proof),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.proof),
    ],
)
def test_each_signal_ends_the_command_like_ctrl_c(
    start: Callable[..., subprocess.Popen[bytes]], how: str, number: int, code: int
) -> None:
    process = start(how, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert line(process) == "ready"
    process.send_signal(number)
    assert process.wait(20) == code
    assert "Traceback" not in process.stdout.read().decode()  # type: ignore[union-attr]


@pytest.mark.proof
@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_what_comes_at_once_is_one_request(start: Callable[..., subprocess.Popen[bytes]], first: int, second: int) -> None:
    process = start("once", stdout=subprocess.PIPE)
    assert line(process) == "ready"
    process.send_signal(first)
    assert line(process) == "interrupted"
    process.send_signal(second)  # as `timeout` and Slurm do
    assert process.wait(20) == 143
    assert line(process) == ""


@pytest.mark.proof
@pytest.mark.parametrize(
    ("number", "pause", "code"), [(signal.SIGTERM, 0.6, 143), (signal.SIGINT, 0.0, 130), (signal.SIGINT, 0.6, 130)]
)
def test_a_second_request_ends_at_once(
    start: Callable[..., subprocess.Popen[bytes]], number: int, pause: float, code: int
) -> None:
    process = start("twice", stdout=subprocess.PIPE)
    assert line(process) == "ready"
    process.send_signal(number)
    assert line(process) == "interrupted"
    time.sleep(pause)
    process.send_signal(number)
    assert line(process) == "again"
    assert process.wait(20) == code


@pytest.mark.proof
def test_a_terminal_that_is_gone_is_no_error(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    terminal, end = pty.openpty()
    process = start("closed", stdin=end, stdout=end, stderr=end, start_new_session=True)
    os.close(end)
    # The whole line: the terminal may hand out a part of it while the command still writes.
    with os.fdopen(terminal, "rb") as screen:
        assert screen.readline().strip() == b"ready"
    process.send_signal(signal.SIGHUP)
    assert process.wait(20) == 129
