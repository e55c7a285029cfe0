"""Child processes: what a failed one says, and that none outlives its purpose."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_core.errors import TrainingError
from grpo_core.run.child import end_process, process_has_ended
from tasks.process.child import INTERRUPTED, run_child
from tasks.process.context import FLOW_RUN_VARIABLE


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of an importable module whose text a test writes to module.py in its folder."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "child_module"


def write(tmp_path: Path, text: str) -> None:
    (tmp_path / "child_module.py").write_text(text)


def test_a_failed_child_is_reported_by_its_last_line(tmp_path: Path, module: str) -> None:
    write(tmp_path, "import sys\nprint('first')\nprint('the reason', file=sys.stderr)\nsys.exit(2)\n")
    with pytest.raises(TrainingError, match=r"^the reason$"):
        run_child(module, [], tmp_path / "log", state_file=tmp_path / "state")
    assert json.loads((tmp_path / "state").read_text())["returncode"] == 2


@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_child_leaves_in_its_group_is_killed_and_a_server_of_its_own_session_is_not(
    tmp_path: Path, module: str, end: str
) -> None:
    text = (
        "import os, signal, subprocess, sys\n"
        "left = subprocess.Popen(['sleep', '600'])\n"
        "server = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(left.pid, server.pid, flush=True)\n"
    )
    write(tmp_path, text + end + "\n")
    with contextlib.suppress(TrainingError):
        run_child(module, [], tmp_path / "log", state_file=tmp_path / "state")
    left, server = map(int, (tmp_path / "log").read_text().split()[:2])
    try:
        deadline = time.monotonic() + 10
        while runs(left) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (runs(left), runs(server)) == (False, True)
    finally:
        os.kill(server, signal.SIGKILL)


def runs(pid: int) -> bool:
    """Return whether a process is there and not a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_hung_child_that_ignores_sigterm_is_killed(tmp_path: Path, module: str) -> None:
    write(tmp_path, "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\ntime.sleep(600)\n")
    errors: list[TrainingError] = []

    def run() -> None:
        try:
            run_child(module, [], tmp_path / "log", state_file=tmp_path / "state")
        except TrainingError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not ((tmp_path / "log").exists() and "ready" in (tmp_path / "log").read_text()):
        time.sleep(0.05)
    pid = json.loads((tmp_path / "state").read_text())["pid"]
    end_process(tmp_path / "state", patience=0.5)
    thread.join(10)
    assert "SIGKILL" in str(errors[0])
    assert not Path(f"/proc/{pid}").exists()


@pytest.fixture
def as_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as in a process that a worker started, whose API is away: without an address Prefect would start a server for it."""
    monkeypatch.setenv(FLOW_RUN_VARIABLE, "a-flow-run")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, even where the tests run in the background of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_when_ready(log: Path) -> None:
    """Raise KeyboardInterrupt in the main thread once the child has written `ready`."""
    while not (log.exists() and "ready" in log.read_text()):
        time.sleep(0.05)
    signal.raise_signal(signal.SIGINT)


FINISHES_ITS_STEP = """
import signal, sys, time
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
print('ready', flush=True)
while not stopping: time.sleep(0.05)
time.sleep({step})
open({out!r}, 'w').write('checkpoint')
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # it is left
def test_a_worker_leaves_a_child_that_is_in_a_long_step_to_its_end(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch, as_deployment: None, interruptible: None
) -> None:
    monkeypatch.setattr("tasks.process.child.STOP_SECONDS", 0.3)
    write(tmp_path, FINISHES_ITS_STEP.format(step=2, out=str(tmp_path / "saved")))
    threading.Thread(target=interrupt_when_ready, args=(tmp_path / "log",), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_child(module, [], tmp_path / "log", state_file=tmp_path / "state")
    assert not (tmp_path / "saved").exists()
    assert process_has_ended(tmp_path / "state")  # for the monitor, which need not wait for it
    pid = json.loads((tmp_path / "state").read_text())["pid"]
    os.waitpid(pid, 0)
    assert (tmp_path / "saved").read_text() == "checkpoint"


def test_at_a_terminal_a_second_interrupt_kills_the_child(
    tmp_path: Path, module: str, interruptible: None, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, FINISHES_ITS_STEP.format(step=600, out=str(tmp_path / "saved")))

    def interrupt_twice() -> None:
        interrupt_when_ready(tmp_path / "log")
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_twice, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_child(module, [], tmp_path / "log", state_file=tmp_path / "state")
    assert json.loads((tmp_path / "state").read_text())["returncode"] == -signal.SIGKILL
    assert not (tmp_path / "saved").exists()
    assert capsys.readouterr().err == INTERRUPTED


def test_what_a_child_writes_is_logged_line_by_line_and_only_once(
    tmp_path: Path, module: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "train.log").write_text("of an earlier process\n")
    write(tmp_path, "import time\nprint('one', flush=True)\ntime.sleep(0.5)\nprint('two')\nprint('no end', end='')\n")
    run_child(module, [], tmp_path / "train.log")
    assert [record.getMessage() for record in caplog.records if record.name == "tasks.process.child"] == [
        "train: one",
        "train: two",
        "train: no end",
    ]
