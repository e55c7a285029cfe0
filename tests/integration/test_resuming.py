"""What is refused and what is waited for where a run is resumed, from the terminal and from Python alike."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core import resume_training
from grpo_core.errors import JournalError
from grpo_core.run.journal import Journal
from grpo_core.run.resuming import lock_run, new_run
from tasks.run.setup import reopen_run

WRITES = """
import fcntl, sys, time
file = open(sys.argv[1], "ab")
fcntl.flock(file, fcntl.LOCK_EX)
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
"""

Resume = Callable[[Path], Any]
WAYS = [pytest.param(reopen_run.fn, id="flow"), pytest.param(resume_training, id="python")]


@pytest.fixture
def start_writer() -> Iterator[Callable[[Any, float], subprocess.Popen[bytes]]]:
    """Return a function that starts a process which holds the lock of a journal for some seconds."""
    children = []

    def begin(run_dir: Any, seconds: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WRITES, str(run_dir.journal_file), str(seconds)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("resume", WAYS)
def test_an_evaluation_is_not_resumed(tiny_run: Any, resume: Resume) -> None:
    run_dir = tiny_run()
    run_dir.mark("evaluation")
    with pytest.raises(JournalError, match="holds an evaluation, which cannot be resumed"):
        resume(run_dir.path)


@pytest.mark.parametrize("resume", WAYS)
def test_a_run_of_an_engine_without_resume_is_refused_once_it_has_a_checkpoint(tiny_run: Any, resume: Resume) -> None:
    run_dir = tiny_run({"training.engine": "trl"})
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    journal.close()
    run_dir.checkpoints.mkdir()
    with pytest.raises(JournalError, match=r"training\.engine trl cannot resume from a checkpoint"):
        resume(run_dir.path)


def test_a_training_that_outlived_its_parent_is_waited_for_and_its_leftovers_are_removed(
    tiny_run: Any, start_writer: Any
) -> None:
    run_dir = tiny_run()
    orphan, began = start_writer(run_dir, 1.0), time.monotonic()
    run_dir.process_file.write_text(f'{{"pid": {orphan.pid}, "returncode": null, "left": false}}\n')
    run_dir.request_stop("of the session before")
    lines: list[str] = []
    with lock_run(run_dir, lines.append):
        assert time.monotonic() - began >= 0.9
        assert not run_dir.stop_file.exists()
        assert not run_dir.process_file.exists()
    assert lines == [f"process {orphan.pid}, a training whose parent process has died, is finishing its step; waiting for it"]


def test_a_training_that_was_started_by_hand_is_not_waited_for(tiny_run: Any, start_writer: Any) -> None:
    run_dir = tiny_run()
    writer = start_writer(run_dir, 60.0)
    with pytest.raises(JournalError, match=f"process {writer.pid} is writing its journal; wait for it, or end it first"):
        resume_training(run_dir.path, progress=False)


def test_a_run_starts_without_what_a_reproduction_that_never_began_has_left(tiny_run: Any, tiny_config: Any) -> None:

    run_dir = tiny_run()
    shutil.copytree(run_dir.data, run_dir.original / "data")
    with new_run(run_dir.path, "x", "run") as begun:
        begun.create(tiny_config())
    assert not run_dir.original.exists()
