"""Processes that outlive this command: started, found again and ended, exactly those; and the ports on which they listen.

A given port must be free, others are chosen; whoever holds a busy one is named.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from grpo_core.errors import StackError
from grpo_core.machine.process_id import ProcessId, identify

POLL_SECONDS = 0.1
HOST = "127.0.0.1"
SEARCHED = 50
"""How many ports above the usual one are tried."""
MARK = "GRPO_STACK"
"""Environment variable that every process of a stack inherits, whatever becomes of its parents."""
GONE = (psutil.Error, ProcessLookupError)
"""What a process that has ended, or is another user's, is answered with."""


def start_process(command: Sequence[str], environment: Mapping[str, str], log_file: Path) -> ProcessId:
    """Start a process in a session of its own, its output appended to a file."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    # A shell's `&` leaves SIGINT ignored, and children inherit that; Prefect's worker stops by sending SIGINT to itself.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with log_file.open("ab") as log:
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
    finally:
        signal.signal(signal.SIGINT, before)
    return identify(started.pid)


def find_process(process: ProcessId) -> psutil.Process | None:
    """Return the live process, None where it has ended or its number is another one's now."""
    try:
        found = psutil.Process(process.pid)
        return found if identify(process.pid) == process and found.status() != psutil.STATUS_ZOMBIE else None
    except GONE:
        return None


def is_alive(process: ProcessId) -> bool:
    """Return whether it still runs."""
    return find_process(process) is not None


def family(process: ProcessId) -> list[ProcessId]:
    """Return a live process and all that descend from it."""
    found = find_process(process)
    if found is None:
        return []
    members = []
    with contextlib.suppress(psutil.Error):
        for member in (found, *found.children(recursive=True)):
            with contextlib.suppress(*GONE):
                members.append(identify(member.pid))
    return members


def marked_processes(mark: str) -> dict[ProcessId, dict[str, str]]:
    """Return the live processes that carry a stack's mark, those whose parents have died included, and their environments."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(*GONE):
            environment: dict[str, str] = process.environ()
            if environment.get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found[identify(process.pid)] = environment
    return found


def end_processes(processes: Iterable[ProcessId], patience: float) -> int:
    """End processes: SIGTERM, and SIGKILL to those still there after `patience` seconds; return how many those were."""
    remaining = list(processes)
    send_signal(remaining, signal.SIGTERM)
    remaining = wait_for_end(remaining, patience)
    send_signal(remaining, signal.SIGKILL)
    wait_for_end(remaining, patience)
    return len(remaining)


def wait_for_end(processes: Iterable[ProcessId], patience: float) -> list[ProcessId]:
    """Wait until all have ended, at most `patience` seconds; return those that have not."""
    deadline = time.monotonic() + patience
    remaining = [process for process in processes if is_alive(process)]
    while remaining and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        remaining = [process for process in remaining if is_alive(process)]
    return remaining


def send_signal(processes: Iterable[ProcessId], number: signal.Signals) -> None:
    """Send a signal to those that are alive."""
    for process in processes:
        if is_alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def choose_port(name: str, given: int | None, usual: int) -> int:
    """Return the given port, else the first free one from the usual one on.

    Raises:
        StackError: the given port is busy, or no port is free.
    """
    if given is not None:
        if not is_free(given):
            raise StackError(
                f"--{name}-port {given}: is in use{_holder(given)}; give another, or leave it out to have one chosen"
            )
        return given
    free = next((port for port in range(usual, usual + SEARCHED) if is_free(port)), None)
    if free is None:
        raise StackError(f"--{name}-port: none of {usual} to {usual + SEARCHED - 1} is free; give one")
    return free


def is_free(port: int) -> bool:
    """Return whether a server could listen on a loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def past_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep requests to this machine, and the secret in them, away from the user's proxy."""
    return {name: ",".join(filter(None, [environment.get(name), HOST])) for name in ("NO_PROXY", "no_proxy")}


def listens(pid: int, port: int) -> bool:
    """Return whether a process of this user listens on a port."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(pid).net_connections(kind="tcp")
        return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found)
    return False


def _holder(port: int) -> str:
    """Name the process that listens on a port, as far as this user may know."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    return ""
