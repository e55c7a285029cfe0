"""Start, end and status of the local stack."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from filelock import FileLock

from flows.stack.commands import POOL
from flows.stack.prefect_api import crash_runs, set_up, stop_runs
from flows.stack.servers import remove_client_settings, write_client_settings
from flows.stack.services import (
    MLFLOW,
    PREFECT,
    choose_port,
    conditions,
    end_processes,
    interrupt_runs,
    marked_processes,
    run_processes,
    service_processes,
    services,
    stack_environment,
    start_service,
    trainings,
    worker_name,
    workers,
)
from flows.stack.state import FILE, Stack, claim_folder, prefect_client, read_stack
from flows.terminal import echo
from grpo_core.errors import StackError
from tasks.credentials import mlflow_page
from tasks.process.context import FLOW_RUN_VARIABLE

USUAL_PORTS = {"prefect_port": 4200, "mlflow_port": 5000}
START_SECONDS, END_SECONDS, SET_UP_SECONDS = 120.0, 15.0, 30.0
TAIL_LINES = 8
"""Last lines of a log that a message quotes; the reason comes before the lines of the shutdown."""
POLL_SECONDS = 0.3


def start_stack(folder: Path, given: Mapping[str, Any]) -> Stack:
    """Start what of the stack does not run yet and return once everything is ready.

    Args:
        folder: where state, databases, artifacts and logs are.
        given: what the user chooses, by field of `Stack`; the rest is that of the stack that is up, else the default.

    Raises:
        StackError: a port is busy, the folder is not a stack's, or a service does not become ready; what this call had
            started is ended again.
    """
    claim_folder(folder)
    with FileLock(folder / "lock"):
        stack = _planned(folder.resolve(), given)
        running = service_processes(stack.folder).keys()
        try:
            _start(stack)
        except BaseException:
            _end_services(stack, [service for service in services(stack) if service not in running])
            if not running:
                _forget(stack)
            raise
    return stack


def end_stack(folder: Path, patience: float) -> None:
    """End what `start_stack` has started in this folder and nothing else.

    Runs under way are cancelled first: each finishes its step and checkpoints.

    Args:
        folder: of the stack.
        patience: how long, in seconds, running trainings may take to finish their step before they are killed.

    Raises:
        StackError: the folder is another user's or a link.
    """
    stack = read_stack(folder)
    if stack is None:
        echo(f"nothing is up in {folder}")
        return
    with FileLock(folder / "lock"):
        waiting = _end_runs(stack, patience)
        _end_services(stack, services(stack))
        end_processes(marked_processes(stack.folder), END_SECONDS)
        if waiting:
            echo(f"{waiting} run(s) are still scheduled; they start with the next `grpo up`")
        _forget(stack)


def _planned(folder: Path, given: Mapping[str, Any]) -> Stack:
    known = read_stack(folder)
    if known is None or not service_processes(folder):
        ports = {name: choose_port(name.removesuffix("_port"), given.get(name), usual) for name, usual in USUAL_PORTS.items()}
        new = Stack(folder=folder, project=Path.cwd(), **{**given, **ports})
        new.write()
        return new
    for name, value in given.items():
        if value != (here := getattr(known, name)):
            option = name.replace("_", "-")
            raise StackError(f"--{option} {value}: the stack of {folder} is up with {here}; run `grpo down` first")
    return known


def _start(stack: Stack) -> None:
    write_client_settings(stack)
    alive = service_processes(stack.folder)
    for service in {PREFECT, MLFLOW} - alive.keys():
        start_service(stack, service)
    _await_ready(stack, PREFECT)
    echo(f"Prefect  {stack.prefect_address}")
    echo(f"         the browser asks once for the secret in {stack.secret_file}")
    with prefect_client(stack, SET_UP_SECONDS) as client:
        set_up(client, stack.slots, stack_environment(stack))
        echo("         work pool and deployments are registered")
        _await_ready(stack, MLFLOW)
        echo(f"MLflow   {mlflow_page(stack.mlflow_address)}")
        # Beside a live worker, which may be about to start the process of a run, it is not known that a run has lost its own.
        if alive.keys().isdisjoint(workers(stack)):
            living = {variables.get(FLOW_RUN_VARIABLE) for variables in marked_processes(stack.folder).values()}
            why = "its process was gone when the stack was started"
            if lost := crash_runs(client, lambda run: run["id"] not in living, why):
                echo(f"         {lost} run(s) of before had lost their process and are Crashed now")
        for worker in workers(stack):
            if worker not in alive:
                # Its record of before would pass for the new one's.
                client.delete(f"/work_pools/{POOL}/workers/{worker_name(worker)}")
                start_service(stack, worker)
    for worker in workers(stack):
        _await_ready(stack, worker)
    how_many = f"{stack.workers} together take" if stack.workers > 1 else "takes"
    echo(f"worker   {how_many} {stack.slots} run(s) at a time")


def _await_ready(stack: Stack, service: str) -> None:
    log, deadline, condition = stack.log_file(service), time.monotonic() + START_SECONDS, ""
    while condition != "ready":
        time.sleep(POLL_SECONDS)  # first: a process is found a moment after its start
        condition = conditions(stack)[service][0]
        if condition == "ended" or time.monotonic() > deadline:
            last = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
            raise StackError(f"{service}: {condition}; its log, {log}, ends with:\n{last}")


def _end_runs(stack: Stack, patience: float) -> int:
    """Cancel the runs and wait for their processes; return how many runs have not begun."""
    waiting, awaited = 0, run_processes
    try:
        with prefect_client(stack) as client:
            count, waiting = stop_runs(client)
    except httpx.HTTPError:  # it is away: the flows, which would ask for it for minutes, are not waited for
        awaited = trainings
        count = interrupt_runs(stack.folder)
    if count:
        echo(f"cancelling {count} run(s): each finishes its step and checkpoints (at most {patience:.0f} s)")
    deadline = time.monotonic() + patience
    while remaining := awaited(stack.folder):
        if time.monotonic() > deadline:
            echo(f"{len(remaining)} process(es) of runs were ended after {patience:.0f} s; their last checkpoint stays")
            break
        time.sleep(POLL_SECONDS)
    end_processes(run_processes(stack.folder), END_SECONDS)
    return waiting


def _end_services(stack: Stack, names: list[str]) -> None:
    alive = service_processes(stack.folder)
    for name in reversed(names):
        if name in alive:
            end_processes(alive[name], END_SECONDS)
            echo(f"{name:8} ended")


def _forget(stack: Stack) -> None:
    (stack.folder / FILE).unlink(missing_ok=True)  # databases, artifacts and logs stay
    remove_client_settings(stack)
