"""Processes of a run are forks of the one that is ready: with their command, log, lifeline and environment, and their end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from grpo_core.errors import TrainingError
from grpo_core.machine.disk import append_private
from grpo_core.run import warm
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


ASKING = """
import os
import sys

from grpo_core.run import warm
from grpo_core.run.child import child_environment

if sys.argv[1] == "of it":
    print(f"forked by {os.getppid()}, torch {'torch' in sys.modules}", flush=True)
else:
    print(sys.argv[1], end=", ", flush=True)
    with warm.warmed(child_environment()):
        lifeline = int(os.environ["GRPO_LIFELINE_FD"])
        sys.exit(warm.ready[0].start(["asking_program", "of it"], 1, lifeline, child_environment()).wait(60))
"""
"""Of a command that has a training."""


FINISHING = """
import signal
import sys
import time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("finished", flush=True)))
print("up", flush=True)
time.sleep(60)
"""
ENDING = """
import atexit
import sys
import threading
import time

atexit.register(print, "handler")
threading.Thread(target=lambda: print("thread", time.sleep(0.5))).start()
print("main")
sys.exit(3)
"""
LEAVING = """
import os
import time

if not os.fork():
    time.sleep(20)
    os._exit(0)
raise SystemExit(7)
"""
"""It leaves a process behind that has all of its descriptors."""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of a user's and a program that waits for the end of its lifeline."""
    (tmp_path / "here.py").write_text("NAME = 'mine'\n")
    (tmp_path / "waiting_program.py").write_text(PROGRAM)
    (tmp_path / "failing_program.py").write_text("raise SystemExit('no such thing')\n")
    (tmp_path / "finishing_program.py").write_text(FINISHING)
    (tmp_path / "ending_program.py").write_text(ENDING)
    (tmp_path / "leaving_program.py").write_text(LEAVING)
    (tmp_path / "drawing_program.py").write_text("import numpy\n\nprint(numpy.random.random(), flush=True)\n")
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


def test_trainings_and_evaluations_are_forks_of_the_process_that_is_ready(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = program / "log"
    with warmed(child_environment()):
        before = ready()
        monkeypatch.setenv("GRPO_TEST", "after")
        for number in (1, 2):
            log.unlink(missing_ok=True)
            with pytest.raises(KeyboardInterrupt):
                start(program, "waiting_program", state := program / f"process-{number}.json")
            assert log.read_text() == "['one', 'two'] after mine True True\n"
            assert read_process_state(state).returncode == -signal.SIGTERM
        assert ready() == before
    assert ready() == []


def test_a_fork_ends_when_the_command_does_and_its_exit_code_is_known(program: Path) -> None:
    with warmed(child_environment()):
        with pytest.raises(TrainingError, match="no such thing"):
            start(program, "failing_program", None)
        log = program / "log"
        with append_private(log) as output, held_lifeline() as lifeline:
            child = warm.ready[0].start(["waiting_program"], output.fileno(), lifeline, child_environment(str(program)))
            assert child is not None
            assert psutil.Process(child.pid).ppid() == ready()[0].pid
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.1)
            assert child.poll() is None
        assert child.wait(10) == child.poll() == 0


def test_forks_end_with_a_warm_process_that_is_killed_and_the_next_is_started_without(program: Path) -> None:
    with warmed(child_environment()):
        with append_private(program / "log") as output, held_lifeline() as lifeline:
            child = warm.ready[0].start(["waiting_program"], output.fileno(), lifeline, child_environment(str(program)))
            assert child is not None
            running = psutil.Process(child.pid)
            ready()[0].kill()
            assert child.wait(10) == -signal.SIGKILL
            assert psutil.wait_procs([running], timeout=10)[1] == []
        with pytest.raises(TrainingError, match="no such thing"):
            start(program, "failing_program", None)


def test_where_there_is_a_gpu_the_process_becomes_the_first_that_is_asked_for(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with warmed(child_environment()):
        before = {process.pid for process in ready()}
        with pytest.raises(KeyboardInterrupt):
            start(program, "waiting_program", state := program / "process.json")
        assert read_process_state(state).pid in before
        assert read_process_state(state).returncode == -signal.SIGTERM
        with pytest.raises(TrainingError, match="no such thing"):
            start(program, "failing_program", None)


def test_commands_of_runs_share_what_their_trainings_are_forked_from_and_nobody_outlives_it(program: Path) -> None:
    commands = Ready(child_environment(), ["json"])
    (started,) = ready()
    deadline = time.monotonic() + 60
    while not (below := started.children()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (program / "asking_program.py").write_text(ASKING)
    for name in ("first", "second"):
        with held_lifeline() as lifeline, append_private(program / name) as log:
            child = commands.start(["asking_program", name], log.fileno(), lifeline, child_environment(str(program)))
            assert child is not None
            assert child.wait(60) == 0
        assert (program / name).read_text() == f"{name}, forked by {below[0].pid}, torch True\n"
    commands.end()
    assert psutil.wait_procs([started, *below], timeout=60)[1] == []


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
    _, alive = psutil.wait_procs(children, timeout=120)  # it imports first
    assert alive == []


def test_without_one_that_is_ready_a_process_is_started(program: Path) -> None:
    os.environ["GRPO_TEST"] = "alone"
    with pytest.raises(KeyboardInterrupt):
        start(program, "waiting_program", program / "process.json")
    assert (program / "log").read_text() == "['one', 'two'] alone mine False True\n"


def fork(program: Path, module: str) -> warm.Forked | None:
    """Return a fork of the process that is ready, whose lifeline is the log."""
    with append_private(program / "log") as output:
        return warm.ready[0].start([module], output.fileno(), output.fileno(), child_environment(str(program)))


def wait_for_log(program: Path, text: str) -> None:
    until = time.monotonic() + 60
    while text not in (program / "log").read_text():
        assert time.monotonic() < until, (program / "log").read_text()
        time.sleep(0.05)


def test_a_fork_finishes_where_every_process_is_asked_to_end(program: Path) -> None:
    with warmed(child_environment()):
        child = fork(program, "finishing_program")
        assert child is not None
        wait_for_log(program, "up")
        ready()[0].terminate()
        child.terminate()
        assert child.wait(20) == 0
        assert "finished" in (program / "log").read_text()


def test_a_fork_ends_as_an_interpreter_does(program: Path) -> None:
    with warmed(child_environment()):
        child = fork(program, "ending_program")
        assert child is not None
        assert child.wait(60) == 3
    assert (program / "log").read_text() == "main\nthread None\nhandler\n"


def test_a_process_that_may_open_no_more_forks_no_more_and_its_forks_live_on(program: Path) -> None:
    with warmed(child_environment()):
        child = fork(program, "finishing_program")
        assert child is not None
        wait_for_log(program, "up")
        of_warm = ready()[0]
        of_warm.rlimit(psutil.RLIMIT_NOFILE, (of_warm.num_fds() + 1,) * 2)
        assert fork(program, "finishing_program") is None
        assert child.poll() is None
        child.terminate()
        assert child.wait(20) == 0


def test_forks_draw_other_random_numbers(program: Path) -> None:
    with warmed(child_environment()):
        for _ in range(2):
            child = fork(program, "drawing_program")
            assert child is not None
            assert child.wait(60) == 0
    first, second = (program / "log").read_text().split()
    assert first != second


def test_edited_modules_are_not_forked(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warmed(child_environment()):
        monkeypatch.setattr(warm, "newest_module", time.time_ns)
        assert fork(program, "drawing_program") is None


def test_on_a_gpu_a_training_that_leaves_processes_behind_has_ended(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with warmed(child_environment()):
        child = fork(program, "leaving_program")
        assert child is not None
        assert child.wait(15) == child.poll() == 7
