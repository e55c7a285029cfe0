"""Start, end and status of the local stack."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
from filelock import FileLock, Timeout

from flows.stack.commands import POOL
from flows.stack.prefect_api import cancel_runs, count_flow_runs, crash_runs, pause_pool, set_up
from flows.stack.processes import (
    choose_port,
    end_processes,
    marked_processes,
    run_processes,
    send_signal,
    service_processes,
)
from flows.stack.servers import remove_client_settings, write_client_settings
from flows.stack.services import MLFLOW, PREFECT, conditions, services, stack_environment, start_service, worker_name, workers
from flows.stack.state import Stack, claim_folder, prefect_client, read_stack
from grpo_core.errors import StackError
from tasks.credentials import mlflow_page
from tasks.process.context import FLOW_RUN_VARIABLE

USUAL_PORTS = {"prefect_port": 4200, "mlflow_port": 5000}
START_SECONDS = 120.0
END_SECONDS = 15.0
SET_UP_SECONDS = 30.0
TAIL_LINES = 8
"""Last lines of a log that a message quotes; the reason comes before the lines of the shutdown."""
POLL_SECONDS = 0.3

Report = Callable[[str], None]


def start_stack(folder: Path, given: Mapping[str, Any], report: Report) -> Stack:
    """Start what of the stack does not run yet and return once everything is ready.

    Args:
        folder: where state, databases, artifacts and logs are.
        given: what the user chooses, by field of `Stack`; the rest is that of the stack that is up, else the default.
        report: takes a line for each thing that is ready.

    Raises:
        StackError: a port is busy, the folder is not a stack's, or a service does not become ready; what this call had
            started is ended again.
    """
    claim_folder(folder)
    with _only_one(folder):
        stack = _planned(folder.resolve(), given)
        running = service_processes(stack.folder).keys()
        try:
            _start(stack, report)
        except BaseException:
            _end_services(stack, [service for service in services(stack) if service not in running])
            if not running:
                _forget(stack)
            raise
    return stack


def end_stack(folder: Path, patience: float, report: Report) -> bool:
    """End what `start_stack` has started in this folder and nothing else; return whether there was anything.

    Runs under way are cancelled first: each finishes its step and checkpoints.

    Args:
        folder: of the stack.
        patience: how long, in seconds, running trainings may take to finish their step before they are killed.
        report: takes a line for each thing that happens.

    Raises:
        StackError: the state of the stack cannot be read, or is another user's.
    """
    if read_stack(folder) is None:  # also a folder that is no stack's, in which nothing is to be made
        return False
    with _only_one(folder):
        stack = read_stack(folder)
        if stack is None:
            return False
        waiting = _end_runs(stack, patience, report)
        for service in _end_services(stack, services(stack)):
            report(f"{service:8} ended")
        end_processes(marked_processes(stack.folder), END_SECONDS)
        if waiting:
            report(f"{waiting} run(s) are still scheduled; they start with the next `grpo up`")
        _forget(stack)
    return True


def _planned(folder: Path, given: Mapping[str, Any]) -> Stack:
    """Return the stack to start: the one that is up, or a new one."""
    known = read_stack(folder)
    if known is None or not service_processes(folder):
        ports = {name: choose_port(name.removesuffix("_port"), given.get(name), usual) for name, usual in USUAL_PORTS.items()}
        new = Stack(folder=folder, project=Path.cwd(), **{**given, **ports})
        new.write()
        return new
    if known.project != Path.cwd():
        raise StackError(f"{folder}: its stack was started in {known.project}; run `grpo up` there, or `grpo down` first")
    for name, value in given.items():
        if value != (now := getattr(known, name)):
            wanted, here = (", ".join(one) if isinstance(one, tuple) else one for one in (value, now))
            option = name.replace("_", "-")
            raise StackError(f"--{option} {wanted}: the stack of {folder} is up with {here}; run `grpo down` first")
    return known


def _start(stack: Stack, report: Report) -> None:
    write_client_settings(stack)
    alive = service_processes(stack.folder)
    for service in (PREFECT, MLFLOW):
        if service not in alive:
            start_service(stack, service)
    _await_ready(stack, PREFECT)
    report(f"Prefect  {stack.prefect_address}")
    report(f"         the browser asks once for the secret in {stack.secret_file}")
    with prefect_client(stack, SET_UP_SECONDS) as client:
        set_up(client, stack.slots, stack_environment(stack))
        report("         work pool and deployments are registered")
        _await_ready(stack, MLFLOW)
        report(f"MLflow   {mlflow_page(stack.mlflow_address)}")
        # Beside a live worker, which may be about to start the process of a run, it is not known that a run has lost its own.
        if alive.keys().isdisjoint(workers(stack)) and (lost := _crash_lost_runs(stack, client)):
            report(f"         {lost} run(s) of before had lost their process and are Crashed now")
        for worker in workers(stack):
            if worker not in alive:
                # Its record of before would pass for the new one's.
                client.delete(f"/work_pools/{POOL}/workers/{worker_name(worker)}")
                start_service(stack, worker)
    for worker in workers(stack):
        _await_ready(stack, worker)
    how_many = f"{stack.workers} together take" if stack.workers > 1 else "takes"
    report(f"worker   {how_many} {stack.slots} run(s) at a time")


def _crash_lost_runs(stack: Stack, client: httpx.Client) -> int:
    alive = {environment.get(FLOW_RUN_VARIABLE) for environment in marked_processes(stack.folder).values()}
    return crash_runs(client, lambda run: run["id"] not in alive, "its process was gone when the stack was started")


def _await_ready(stack: Stack, service: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (condition := conditions(stack)[service][0]) != "ready":
        if condition == "ended" or time.monotonic() > deadline:
            log = stack.log_file(service)
            last = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
            raise StackError(f"{service}: {condition}; its log, {log}, ends with:\n{last}")
        time.sleep(POLL_SECONDS)


def _end_runs(stack: Stack, patience: float, report: Report) -> int:
    """Cancel the runs and wait for their processes; return how many runs have not begun."""
    waiting, is_away = 0, False
    try:
        with prefect_client(stack) as client:
            pause_pool(client)
            waiting = count_flow_runs(client)["SCHEDULED"]
            count = cancel_runs(client)
    except httpx.HTTPError:
        is_away = True
        count = _interrupt_runs(run_processes(stack.folder))
    if count:
        report(f"cancelling {count} run(s): each finishes its step and checkpoints (at most {patience:.0f} s)")
    deadline = time.monotonic() + patience
    while remaining := _still_working(stack, is_away):
        if time.monotonic() > deadline:
            report(f"{len(remaining)} process(es) of runs were ended after {patience:.0f} s; their last checkpoint stays")
            break
        time.sleep(POLL_SECONDS)
    end_processes(run_processes(stack.folder), END_SECONDS)
    return waiting


def _interrupt_runs(processes: list[psutil.Process]) -> int:
    """Ask the flows' processes to end as a worker does, where Prefect cannot; each hands it on to its training."""
    numbers = {process.pid for process in processes}
    with contextlib.suppress(psutil.Error):
        first = [process for process in processes if process.ppid() not in numbers]
        send_signal(first, signal.SIGTERM)
        return len(first)
    return 0


def _still_working(stack: Stack, is_away: bool) -> list[psutil.Process]:
    """Return the processes of runs; without those of flows that would ask for minutes for a Prefect that is away."""
    processes = run_processes(stack.folder)
    return [process for process in processes if not (is_away and _is_flow(process))]


def _is_flow(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(word.startswith("prefect") for word in process.cmdline())
    return True


def _end_services(stack: Stack, names: list[str]) -> list[str]:
    """End services, the later started first; return the names of those that were running."""
    alive = service_processes(stack.folder)
    running = [name for name in reversed(names) if name in alive]
    for name in running:
        end_processes(alive[name], END_SECONDS)
    return running


def _forget(stack: Stack) -> None:
    stack.forget()
    remove_client_settings(stack)


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Keep a second `up` or `down` of the same folder out."""
    try:
        with FileLock(folder / "lock", blocking=False):
            yield
    except Timeout as error:
        raise StackError(f"{folder}: another `grpo up` or `grpo down` is at work here; wait for it") from error
