"""Processes that outlive this command: started, found again by a mark in their environment and ended; and free ports."""

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from flows.stack.commands import HOST
from grpo_core.errors import StackError
from tasks.process.context import FLOW_RUN_VARIABLE

MARK, SERVICE = "GRPO_STACK", "GRPO_STACK_SERVICE"
"""Environment variables that every process of a stack inherits, whatever becomes of its parents: the folder, the service."""
POLL_SECONDS = 0.02
SEARCHED = 50
"""How many ports above the usual one are tried."""


def start_process(command: Sequence[str], environment: Mapping[str, str], log_file: Path) -> None:
    """Start a process in a session of its own, its output appended to a file."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    # A shell's `&` leaves SIGINT ignored, and children inherit that; Prefect's worker stops by sending SIGINT to itself.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with log_file.open("ab") as log:
            process = psutil.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environment), start_new_session=True
            )
        with contextlib.suppress(psutil.Error):  # by its environment it is found, and that is there a moment after it
            while process.poll() is None and not process.environ():
                time.sleep(POLL_SECONDS)
    finally:
        signal.signal(signal.SIGINT, before)


def marked_processes(folder: Path) -> dict[psutil.Process, dict[str, str]]:
    """Return the live processes of the stack in a folder, those whose parents have died included, and their environments."""
    found = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(MARK) == str(folder.resolve()) and process.status() != psutil.STATUS_ZOMBIE:
                found[process] = environment
        except psutil.Error:  # it has ended, or is another user's
            continue
    return found


def service_processes(folder: Path) -> dict[str, list[psutil.Process]]:
    """Return the live processes of each service; those of runs are not among them."""
    found: dict[str, list[psutil.Process]] = {}
    for process, environment in marked_processes(folder).items():
        if FLOW_RUN_VARIABLE not in environment and SERVICE in environment:
            found.setdefault(environment[SERVICE], []).append(process)
    return found


def run_processes(folder: Path) -> list[psutil.Process]:
    """Return the live processes of a stack's runs: they outlive the worker, and a training may outlive its flow's process."""
    return [process for process, environment in marked_processes(folder).items() if FLOW_RUN_VARIABLE in environment]


def end_processes(processes: Iterable[psutil.Process], patience: float) -> None:
    """End processes: SIGTERM, and SIGKILL to those still there after `patience` seconds."""
    remaining = list(processes)
    for number in (signal.SIGTERM, signal.SIGKILL):
        send_signal(remaining, number)
        _, remaining = psutil.wait_procs(remaining, timeout=patience)


def send_signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that are alive."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def listens(processes: Iterable[psutil.Process], port: int) -> bool:
    """Return whether one of these processes listens on a port."""
    for process in processes:
        try:
            connections = process.net_connections(kind="tcp")
        except psutil.Error:
            continue
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections):
            return True
    return False


def choose_port(name: str, given: int | None, usual: int) -> int:
    """Return the given port, else the first free one from the usual one on.

    Raises:
        StackError: the given port is busy, or no port is free.
    """
    if given is not None and not is_free(given):
        raise StackError(f"--{name}-port {given}: is in use; give another, or leave it out to have one chosen")
    candidates = [given] if given is not None else range(usual, usual + SEARCHED)
    free = next((port for port in candidates if is_free(port)), None)
    if free is None:
        raise StackError(f"--{name}-port: none of {usual} to {usual + SEARCHED - 1} is free; give one")
    return free


def is_free(port: int) -> bool:
    """Return whether a server could listen on a loopback port."""
    try:
        # As servers do it: a port whose last connections are still closing is free.
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True
