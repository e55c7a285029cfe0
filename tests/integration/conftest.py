"""Trainings in this process, which must leave it as it was, and trainings that are met in the middle."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from grpo_core.machine.process import LIFELINE_VARIABLE
from grpo_core.run.folder import RunDir

START_SECONDS = 120.0


@pytest.fixture(autouse=True)
def _leave_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A training catches signals and pins threads."""
    import torch

    monkeypatch.delenv(LIFELINE_VARIABLE, raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def start_training() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts a training as a process and waits until something holds; it ends with the test."""
    children: list[subprocess.Popen[bytes]] = []

    def begin(run_dir: RunDir, until: Callable[[], bool], *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "grpo_core.training", str(run_dir.path), *arguments]
        with run_dir.log_file("train").open("ab") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log, **options)
        children.append(child)
        deadline = time.monotonic() + START_SECONDS
        while not until():
            assert child.poll() is None, run_dir.log_file("train").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return child

    yield begin
    for child in children:
        child.kill()
        child.wait()
