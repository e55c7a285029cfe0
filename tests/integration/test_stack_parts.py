"""Ports, processes and slots of the local stack, with real sockets and real processes."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.stack.control import start_stack
from flows.stack.services import (
    MARK,
    SERVICE,
    choose_port,
    end_processes,
    is_free,
    marked_processes,
    run_processes,
    service_processes,
    start_process,
)
from flows.stack.state import Stack
from grpo_core.errors import StackError
from grpo_core.machine.gpus import FOLDER_VARIABLE, SLOTS_VARIABLE, held_slot
from tasks.process.context import FLOW_RUN_VARIABLE

# These processes outlive the objects that started them; that is what they are for.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

SLEEPER = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"]


@pytest.fixture
def listener() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def start(command: list[str], folder: Path, log: Path, **variables: str) -> None:
    """Start a process of the stack in a folder and wait until it says that it is ready."""
    start_process(command, {**os.environ, MARK: str(folder), **variables}, log)
    while "ready" not in log.read_text():
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a stack, whose processes are gone afterwards."""
    yield tmp_path
    end_processes(marked_processes(tmp_path), 5)


def test_a_given_port_that_is_busy_is_refused(listener: int) -> None:
    with pytest.raises(StackError, match=rf"--mlflow-port {listener}: is in use"):
        choose_port("mlflow", listener, 5000)


def test_a_port_that_is_left_out_is_the_next_free_one(listener: int) -> None:
    chosen = choose_port("mlflow", None, listener)
    assert chosen > listener
    assert is_free(chosen)


def test_marked_processes_are_found_after_their_parents_death(folder: Path) -> None:
    parent = [sys.executable, "-c", f"import subprocess; subprocess.Popen({SLEEPER!r}, start_new_session=True)"]
    start(parent, folder, folder / "log")
    with contextlib.suppress(psutil.TimeoutExpired):
        psutil.wait_procs(list(marked_processes(folder)), timeout=1)
    assert len(marked_processes(folder)) == 1
    assert marked_processes(folder / "another") == {}


def test_the_process_of_a_run_is_not_its_workers(folder: Path) -> None:
    start(SLEEPER, folder, folder / "a", **{SERVICE: "worker"})
    start(SLEEPER, folder, folder / "b", **{SERVICE: "worker", FLOW_RUN_VARIABLE: "one"})
    (worker,) = service_processes(folder)["worker"]
    (run,) = run_processes(folder)
    assert worker != run
    end_processes([worker], 5)
    assert service_processes(folder) == {}


def test_a_stack_belongs_to_the_folder_in_which_it_was_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    other = Stack(folder=folder / ".grpo", prefect_port=4207, mlflow_port=5007, project=folder / "other")
    other.folder.mkdir()
    (other.folder / "grpo-stack").touch()
    other.write()
    start(SLEEPER, other.folder, folder / "log", **{SERVICE: "worker"})
    try:
        with pytest.raises(StackError, match=rf"its stack was started in {folder / 'other'}"):
            start_stack(other.folder, {}, print)
    finally:
        end_processes(marked_processes(other.folder), 5)


class BusyError(Exception):
    """Every slot is taken."""


def busy() -> None:
    raise BusyError


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two slots."""
    monkeypatch.setenv(SLOTS_VARIABLE, "2")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "slots"))
    return tmp_path


def test_a_child_keeps_the_slot_when_its_starter_leaves_and_the_kernel_frees_it_at_its_death(slots: Path) -> None:
    with held_slot(busy) as descriptors:
        child = subprocess.Popen(SLEEPER, pass_fds=descriptors, stdout=subprocess.DEVNULL)
    with held_slot(busy), pytest.raises(BusyError), held_slot(busy):
        pass
    child.kill()
    child.wait()
    with held_slot(busy), held_slot(busy):
        pass
