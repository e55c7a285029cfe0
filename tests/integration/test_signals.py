"""A training that is interrupted: once it ends in order, twice it ends at once, and one that hangs is killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.metrics import find_metric
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.training.__main__ import main
from grpo_core.training.signals import AT_ONCE

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
NATIVE = """
import ctypes, signal

def native(seconds):
    # One long call of native code: no Python handler runs before it returns; as a product of matrices, no signal wakes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGALRM})
    ctypes.CDLL(None).usleep(int(seconds * 1e6))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGALRM})
"""
LONG_STEP = f"""{NATIVE}
import os
from pathlib import Path

calls = 0


def score(prompts, completions, **columns):
    global calls
    calls += 1
    if calls == 3 and "LONG_STEP" in os.environ:
        Path(os.environ["LONG_STEP"]).write_text("reached")
        native(4)
    return [float(len(completion[0]["content"]) < 5) for completion in completions]
"""
IN_NATIVE_CODE = f"""{NATIVE}
import sys, time
from pathlib import Path
from grpo_core.training import signals
signals.STOP_LIMIT_SECONDS = 0.5
stop = signals.StopRequest(Path("STOP"), None)
stop.install()
if sys.argv[1] == "ends":
    stop.close()
if sys.argv[1] == "alarm":
    signal.signal(signal.SIGALRM, lambda *_: None)
print("ready", flush=True)
native(2)
"""


@pytest.fixture
def in_native_code(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Return a function that starts a process which heeds signals and is in native code for seconds."""
    children = []

    def begin(how: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", IN_NATIVE_CODE, how]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=ENVIRONMENT)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("how", "sent", "code"),
    [
        ("hangs", signal.SIGTERM, -signal.SIGKILL),
        ("hangs", signal.SIGINT, -signal.SIGKILL),
        ("ends", signal.SIGTERM, 0),
        ("alarm", signal.SIGALRM, 0),
    ],
)
def test_who_hangs_after_a_signal_is_killed_and_who_has_ended_or_was_sent_another_one_is_not(
    in_native_code: Any, how: str, sent: int, code: int
) -> None:
    child = in_native_code(how)
    started = time.monotonic()
    child.send_signal(sent)
    assert child.wait(20) == code
    assert (time.monotonic() - started > 1.5) == (code == 0)


def test_a_second_interrupt_ends_the_process_at_once_even_in_native_code(in_native_code: Any) -> None:
    child = in_native_code("goes on")
    started = time.monotonic()
    child.send_signal(signal.SIGINT)
    time.sleep(0.1)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert time.monotonic() - started < 0.5  # sooner than the limit after which it would be killed
    assert child.communicate()[1] == AT_ONCE


def test_a_second_sigterm_is_no_more_than_the_first(in_native_code: Any) -> None:
    child = in_native_code("hangs")
    for _ in range(3):
        child.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        assert child.poll() is None
    assert child.wait(20) == -signal.SIGKILL  # at the limit, as after one


@pytest.fixture
def in_a_long_step(
    tiny_run: Any, start_training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[subprocess.Popen[bytes], RunDir]]:
    """Return a function that starts a training and returns it with its RUN_DIR once it is in native code in its third step."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "long_step.py").write_text(LONG_STEP)
    monkeypatch.syspath_prepend(str(code))

    def begin() -> tuple[subprocess.Popen[bytes], RunDir]:
        run_dir = tiny_run({"rewards": [{"fn": "long_step:score"}], "training.checkpoint_every": 1})
        path = os.pathsep.join((str(ROOT), str(code)))
        environment = {**os.environ, "PYTHONPATH": path, "LONG_STEP": str(tmp_path / "reached")}
        return start_training(run_dir, (tmp_path / "reached").exists, env=environment), run_dir

    return begin


def figures(run_dir: RunDir) -> list[dict[str, float]]:
    """The deterministic figures of each step."""
    steps = [record.metrics for record in read_journal(run_dir.journal_file) if record.kind == "step"]
    return [{key: value for key, value in step.items() if find_metric(key).deterministic} for step in steps]  # type: ignore[union-attr]


def test_a_training_that_is_interrupted_twice_keeps_its_journal_and_goes_on_when_started_again(
    in_a_long_step: Any, tmp_path: Path
) -> None:
    child, run_dir = in_a_long_step()
    started = time.monotonic()
    child.send_signal(signal.SIGINT)
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert time.monotonic() - started < 2
    assert run_dir.log_file("train").read_bytes().endswith(AT_ONCE)
    ended = [(record.kind, record.step) for record in read_journal(run_dir.journal_file)]
    assert ended == [("start", 0), ("step", 1), ("checkpoint", 1), ("step", 2), ("ref_sync", 2), ("checkpoint", 2)]
    shutil.copytree(run_dir.path, tmp_path / "whole")
    whole = RunDir(tmp_path / "whole")
    shutil.rmtree(whole.checkpoints)
    whole.journal_file.unlink()
    for run in (run_dir, whole):
        assert main([str(run.path)]) == 0
    assert len(figures(run_dir)) == 4
    assert figures(run_dir) == figures(whole)


def test_a_training_that_is_interrupted_once_finishes_its_step(in_a_long_step: Any) -> None:
    child, run_dir = in_a_long_step()
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    records = read_journal(run_dir.journal_file)
    assert [(record.kind, record.step) for record in records[-3:]] == [("step", 3), ("checkpoint", 3), ("end", 3)]
    assert records[-1].data == {"status": "stopped", "reason": "SIGINT"}
