"""The process that is ready becomes one of a run: with its command, log, lifeline and environment, and its end."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from grpo_core.errors import TrainingError
from grpo_core.machine.disk import append_private
from grpo_core.run.child import child_environment, finish_child, held_lifeline, read_process_state, run_watched
from grpo_core.run.warm import MODULE, Ready, warmed

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os
import sys

import here

print(sys.argv[1:], os.environ["GRPO_TEST"], here.NAME, "torch" in sys.modules, os.getsid(0) == os.getpid(), flush=True)
os.read(int(os.environ["GRPO_LIFELINE_FD"]), 1)  # until the one that started it is gone
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of a user's and a program that waits for the end of its lifeline."""
    (tmp_path / "here.py").write_text("NAME = 'mine'\n")
    (tmp_path / "waiting_program.py").write_text(PROGRAM)
    (tmp_path / "failing_program.py").write_text("raise SystemExit('no such thing')\n")
    monkeypatch.setenv("GRPO_TEST", "before")
    return tmp_path


def ready() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if MODULE in child.cmdline()]


def start(program: Path, module: str, state_file: Path | None) -> None:
    def look() -> None:
        time.sleep(0.05)
        if state_file is not None and (program / "log").read_text():
            raise KeyboardInterrupt

    run_watched(
        module,
        ["one", "two"],
        program / "log",
        look=look,
        stop=finish_child,
        report=print,
        state_file=state_file,
        import_from=[str(program)],
    )


def test_the_training_is_the_process_that_was_ready(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = program / "process.json"
    with warmed(child_environment()):
        before = {process.pid for process in ready()}
        monkeypatch.setenv("GRPO_TEST", "after")
        with pytest.raises(KeyboardInterrupt):
            start(program, "waiting_program", state)
        assert read_process_state(state).pid in before
        assert ready() == []
    assert (program / "log").read_text() == "['one', 'two'] after mine True True\n"


def test_it_fails_with_its_own_words_and_ends_where_nobody_takes_it(program: Path) -> None:
    with warmed(child_environment()), pytest.raises(TrainingError, match="no such thing"):
        start(program, "failing_program", None)
    with warmed(child_environment()):
        assert len(ready()) == 1
    assert ready() == []


def test_the_command_of_the_next_run_has_a_training_ready_itself_and_nobody_outlives_it(program: Path) -> None:
    command, unused = (Ready(child_environment(), ["json"]) for _ in range(2))
    started = ready()
    assert len(started) == 2
    deadline = time.monotonic() + 60
    while len(below := [child for process in started for child in process.children()]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with held_lifeline() as lifeline, append_private(program / "log") as log:
        environment = {**child_environment(str(program)), "GRPO_TEST": "of its run"}
        child = command.become(["waiting_program", "one"], log.fileno(), lifeline, environment)
        assert child is not None
        assert child.pid in {process.pid for process in started}
        while not (program / "log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert child.wait(10) == 0
    unused.end()
    assert (program / "log").read_text() == "['one'] of its run mine False True\n"
    assert psutil.wait_procs([*started, *below], timeout=60)[1] == []


def test_one_that_is_ready_ends_when_the_command_is_killed() -> None:
    program = "from grpo_core.run.child import child_environment\nfrom grpo_core.run.warm import warmed\nimport time\n"
    program += "with warmed(child_environment()):\n    print('ready', flush=True)\n    time.sleep(60)\n"
    command = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    assert command.stdout is not None
    assert command.stdout.readline() == b"ready\n"
    children = psutil.Process(command.pid).children()
    assert len(children) == 1
    command.kill()
    command.wait()
    command.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


def test_without_one_that_is_ready_a_process_is_started(program: Path) -> None:
    os.environ["GRPO_TEST"] = "alone"
    with pytest.raises(KeyboardInterrupt):
        start(program, "waiting_program", program / "process.json")
    assert (program / "log").read_text() == "['one', 'two'] alone mine False True\n"
