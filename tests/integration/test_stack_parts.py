"""Ports, processes and slots of the local stack, with real sockets and real processes."""

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.stack.control import Wanted, start_stack
from flows.stack.processes import (
    MARK,
    ProcessId,
    choose_port,
    end_processes,
    family,
    identify,
    is_alive,
    is_free,
    marked_processes,
    start_process,
)
from flows.stack.servers import folder_here, remove_client_settings, write_client_settings
from flows.stack.state import Stack, read_stack
from grpo_core.errors import StackError
from grpo_core.machine.gpus import SLOTS_VARIABLE
from grpo_core.machine.slots import FOLDER_VARIABLE, held_slot

# These processes outlive the objects that started them; that is what they are for.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

SLEEPER = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]


@pytest.fixture
def listener() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def started(command: list[str], log: Path, mark: str = "none") -> ProcessId:
    """Start a process and wait until it says that it is ready."""
    process = start_process(command, {**os.environ, MARK: mark}, log)
    while "ready" not in log.read_text():
        time.sleep(0.02)
    return process


def test_a_given_port_that_is_busy_is_refused_with_its_holder(listener: int) -> None:
    with pytest.raises(StackError, match=rf"--mlflow-port {listener}: is in use by .*\(process {os.getpid()}\)"):
        choose_port("mlflow", listener, 5000)


def test_a_port_that_is_left_out_is_the_next_free_one(listener: int) -> None:
    chosen = choose_port("mlflow", None, listener)
    assert chosen > listener
    assert is_free(chosen)


def test_a_process_is_known_by_number_and_start(tmp_path: Path) -> None:
    process = started(SLEEPER, tmp_path / "log")
    try:
        assert is_alive(process)
        assert not is_alive(replace(process, started=process.started - 100))
        assert family(replace(process, started=process.started - 100)) == []
    finally:
        end_processes([process], 10)
    assert not is_alive(process)


def test_a_process_heeds_interrupts_even_if_its_starter_ignores_them(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = started(SLEEPER, tmp_path / "log")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    os.kill(process.pid, signal.SIGINT)
    os.waitpid(process.pid, 0)
    assert not is_alive(process)


def test_only_those_that_do_not_heed_sigterm_are_killed(tmp_path: Path) -> None:
    processes = [started(SLEEPER, tmp_path / "a"), started(STUBBORN, tmp_path / "b")]
    assert end_processes(processes, 1.0) == 1
    assert [process for process in processes if is_alive(process)] == []


def test_marked_processes_are_found_after_their_parents_death(tmp_path: Path) -> None:
    parent = [sys.executable, "-c", f"import subprocess; subprocess.Popen({SLEEPER!r}, start_new_session=True)"]
    mark = str(tmp_path)
    start_process(parent, {**os.environ, MARK: mark}, tmp_path / "log")
    while "ready" not in (tmp_path / "log").read_text():
        time.sleep(0.02)
    orphans = [process for process in marked_processes(mark) if is_alive(process)]
    assert len(orphans) == 1
    assert end_processes(orphans, 10) == 0
    assert marked_processes(mark) == {}


def test_a_stack_is_remembered_as_it_is(tmp_path: Path) -> None:
    assert read_stack(tmp_path) is None
    stack = Stack(folder=tmp_path, prefect_port=4207, mlflow_port=5007, slots=2, project=tmp_path)
    stack = stack.with_process("worker", ProcessId(pid=os.getpid(), started=12))
    assert read_stack(tmp_path) == stack
    assert not stack.alive("worker")
    stack.forget()
    assert read_stack(tmp_path) is None


def test_the_settings_file_is_written_and_removed_by_its_own_stack_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = Stack(folder=Path("one"), prefect_port=4207, mlflow_port=5007, slots=1, project=tmp_path)
    two = replace(one, folder=Path("two"))
    assert folder_here() == Path(".grpo")
    write_client_settings(one)
    assert folder_here() == tmp_path / "one"
    assert tomllib.loads((tmp_path / "prefect.toml").read_text())["api"] == {"url": one.api}
    with pytest.raises(StackError, match=rf"is of the stack in {tmp_path / 'one'}; `grpo down --folder"):
        write_client_settings(two)
    remove_client_settings(two)
    write_client_settings(one)
    remove_client_settings(one)
    assert not (tmp_path / "prefect.toml").exists()
    (tmp_path / "prefect.toml").write_text("[api]\n")
    with pytest.raises(StackError, match=r"is not from `grpo up`"):
        write_client_settings(one)
    remove_client_settings(one)
    assert folder_here() == Path(".grpo")
    assert (tmp_path / "prefect.toml").exists()


def test_a_stack_belongs_to_the_folder_in_which_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prefect.yaml").touch()
    monkeypatch.chdir(tmp_path)
    other = Stack(folder=tmp_path / ".grpo", prefect_port=4207, mlflow_port=5007, slots=1, project=tmp_path / "other")
    other.folder.mkdir()
    other.with_process("worker", identify(os.getpid()))
    with pytest.raises(StackError, match=rf"its stack was started in {tmp_path / 'other'}"):
        start_stack(other.folder, Wanted(), print)


def test_a_damaged_state_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"processes": 3}')
    with pytest.raises(StackError, match=r"stack\.json: cannot be read"):
        read_stack(tmp_path)


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


def test_slots_are_taken_until_there_are_none_and_given_back(slots: Path) -> None:
    with held_slot(busy), held_slot(busy), pytest.raises(BusyError), held_slot(busy):
        pass
    with held_slot(busy), held_slot(busy):
        pass


def test_a_child_keeps_the_slot_when_its_starter_leaves_and_the_kernel_frees_it_at_its_death(slots: Path) -> None:
    with held_slot(busy) as descriptors:
        child = subprocess.Popen(SLEEPER, pass_fds=descriptors, stdout=subprocess.DEVNULL)
    with held_slot(busy), pytest.raises(BusyError), held_slot(busy):
        pass
    child.kill()
    child.wait()
    with held_slot(busy), held_slot(busy):
        pass


def test_without_a_worker_nothing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SLOTS_VARIABLE, raising=False)
    with held_slot(busy) as first, held_slot(busy) as second:
        assert first == second == ()
