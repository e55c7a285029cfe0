"""Start, end and status of the local stack."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.stack.prefect_api import (
    count_flow_runs,
    forget_worker,
    is_flow,
    pause_pool,
    run_processes,
    set_up_prefect,
    settle_lost_runs,
    stop_runs,
)
from flows.stack.processes import choose_port, end_processes, family, is_free, marked_processes, start_process
from flows.stack.servers import remove_client_settings, write_client_settings
from flows.stack.services import MLFLOW, PREFECT, Service, mark, servers, services, stack_environment, workers
from flows.stack.state import Stack, claim_folder, ensure_secret, read_secret, read_stack, secret_file
from grpo_core.errors import StackError
from grpo_core.generation.vllm.records import end_servers
from grpo_core.machine.locks import open_lock, try_lock
from tasks.links import mlflow_home_page

PREFECT_PORT, MLFLOW_PORT = 4200, 5000
START_SECONDS = 120.0
END_SECONDS = 15.0
PORT_IN_USE = "address already in use"
"""What a server writes before it ends because another process listens on its port."""
TAIL_LINES = 8
"""Last lines of a log that a message quotes; the reason comes before the lines of the shutdown."""
PORT_ATTEMPTS = 4
POINTLESS_SECONDS = 2.0
"""How long a flow whose training has ended may keep asking for a server that is gone; by itself it asks for minutes."""
POLL_SECONDS = 0.2

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What of a stack the user chooses; None = what the stack that is up has, else the default."""

    prefect_port: int | None = None
    """Of Prefect's API and UI: 4200 or the next free one."""
    mlflow_port: int | None = None
    """Of MLflow: 5000 or the next free one."""
    slots: int | None = None
    """Runs at a time: 1."""
    workers: int | None = None
    """Processes that take runs: 1."""
    allow_reward: tuple[str, ...] | None = None
    """Modules whose functions deployments may name as rewards: none."""
    vllm: str | None = None
    """Interpreter of the environment with vLLM, whose servers stay from run to run: none does."""


def start_stack(folder: Path, wanted: Wanted, report: Report) -> Stack:
    """Start what of the stack does not run yet and return once everything is ready.

    Args:
        folder: where state, databases, artifacts and logs are.
        wanted: ports, slots and workers.
        report: takes a line for each thing that is ready.

    Raises:
        StackError: a port is busy, the folder is not a stack's, or a service does not become ready; what this call had
            started is ended again.
    """
    claim_folder(folder)
    with _only_one(folder):
        for _ in range(PORT_ATTEMPTS):
            try:
                return _start_or_end(_planned(folder, wanted), report)
            except _PortTakenError as error:  # a stack of another folder that starts in this moment has chosen the same one
                taken = error
                if getattr(wanted, f"{error.service}_port") is not None or read_stack(folder) is not None:
                    break  # the user's choice, or that of a stack the rest of which is up
                report(f"{error.service:8} port {error.port} was taken while it started; trying another")
        raise taken


class _PortTakenError(StackError):
    """Another process listens on the port that was chosen for a service, which has ended for it."""

    def __init__(self, message: str, service: str, port: int) -> None:
        super().__init__(message)
        self.service, self.port = service, port


def _start_or_end(stack: Stack, report: Report) -> Stack:
    """Start what of a stack does not run yet; where that fails, what this has started is ended again."""
    running = [service.name for service in services(stack) if stack.alive(service.name)]
    try:
        return _start(stack, report)
    except BaseException:
        started = read_stack(stack.folder)
        if started is not None:
            _end(started, [service for service in reversed(services(stack)) if service.name not in running], END_SECONDS)
            if not running:
                _forget(started)
        raise


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
        pause_pool(stack)
        _end_runs(stack, patience, report)
        counts = count_flow_runs(stack)
        waiting = counts["SCHEDULED"] if counts else 0
        for name in _end(stack, list(reversed(services(stack))), END_SECONDS):
            report(f"{name:8} ended")
        end_processes(marked_processes(mark(stack)), END_SECONDS)
        end_servers(stack.vllm_folder)  # where their keeper was killed
        if waiting:
            report(f"{waiting} run(s) are still scheduled; they start with the next `grpo up`")
        _forget(stack)
    return True


def stack_status(folder: Path) -> tuple[Stack | None, dict[str, str]]:
    """Return the stack of a folder and the condition of each service: `ready`, `not ready` or `ended`."""
    stack = read_stack(folder)
    return stack, {service.name: _condition(stack, service) for service in services(stack)} if stack else {}


def _condition(stack: Stack, service: Service) -> str:
    if not stack.alive(service.name):
        return "ended"
    return "ready" if service.healthy(stack) else "not ready"


def _planned(folder: Path, wanted: Wanted) -> Stack:
    """Return the stack to start: the one that there is, with its ports, or a new one."""
    known = read_stack(folder)
    if known is None or not any(known.alive(service.name) for service in services(known)):
        new = Stack(
            folder=folder,
            prefect_port=choose_port("prefect", wanted.prefect_port, PREFECT_PORT),
            mlflow_port=choose_port("mlflow", wanted.mlflow_port, MLFLOW_PORT),
            slots=wanted.slots or 1,
            workers=wanted.workers or 1,
            allow_reward=wanted.allow_reward or (),
            vllm=wanted.vllm or "",
            project=Path.cwd(),
        )
        ensure_secret(folder)
        new.write()
        return new
    if known.project != Path.cwd():
        raise StackError(f"{folder}: its stack was started in {known.project}; run `grpo up` there, or `grpo down` first")
    for name, given in asdict(wanted).items():
        if given not in (None, now := getattr(known, name)):
            raise StackError(
                f"--{name.replace('_', '-')} {_listed(given)}: the stack of {folder} is up with {_listed(now)}; "
                "run `grpo down` first"
            )
    if read_secret(folder) is None:
        raise StackError(
            f"{folder}: the stack that is up here asks for no secret (an older version started it), or {secret_file(folder)} "
            "is lost; run `grpo down`, then `grpo up`"
        )
    return known


def _listed(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value) or "none"


def _start(stack: Stack, report: Report) -> Stack:
    write_client_settings(stack)
    for service in servers(stack):
        stack = _ensure_started(stack, service)
    _await_ready(stack, PREFECT)
    report(f"Prefect  {stack.prefect_address}")
    report(f"         the browser asks once for the secret in {secret_file(stack.folder)}")
    set_up_prefect(stack)
    report("         work pool and deployments are registered")
    _await_ready(stack, MLFLOW)
    report(f"MLflow   {mlflow_home_page(stack.mlflow_address)}")
    if stack.vllm:
        report(f"vllm     servers of {stack.vllm} stay from run to run, at most one a slot")
    stack = _start_workers(stack, report)
    for service in services(stack):
        _await_ready(stack, service)
    how_many = f"{stack.workers} together take" if stack.workers > 1 else "takes"
    report(f"worker   {how_many} {stack.slots} run(s) at a time")
    return stack


def _start_workers(stack: Stack, report: Report) -> Stack:
    # Beside a live worker, which may be about to start the process of a run, it cannot be known that a run has lost its own.
    if not any(stack.alive(worker.name) for worker in workers(stack)) and (lost := settle_lost_runs(stack)):
        report(f"         {lost} run(s) of before had lost their process and are Crashed now")
    for worker in workers(stack):
        if not stack.alive(worker.name):
            forget_worker(stack, worker)  # its record of before would pass for the new one's
        stack = _ensure_started(stack, worker)
    return stack


def _ensure_started(stack: Stack, service: Service) -> Stack:
    if stack.alive(service.name):
        return stack
    environment = {**stack_environment(stack), **service.variables(stack)}
    return stack.with_process(service.name, start_process(service.command(stack), environment, stack.log_file(service.name)))


def was_taken(lines: Sequence[str], port: int) -> bool:
    """Return whether a service's log says that another process had its port; many lines about its end may follow.

    >>> line = "[Errno 98] error while attempting to bind on address ('127.0.0.1', 4200): address already in use"
    >>> was_taken([line, "Application shutdown failed. Exiting."], 4200), was_taken([line], 4201)
    (True, False)
    """
    return any(PORT_IN_USE in line.lower() and str(port) in line for line in lines)


def _await_ready(stack: Stack, service: Service) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (ended := not stack.alive(service.name)) or not service.healthy(stack):
        if ended or time.monotonic() > deadline:
            how = "ended" if ended else f"is not ready after {START_SECONDS:.0f} s"
            log = stack.log_file(service.name)
            lines = log.read_text(errors="replace").splitlines()
            message = "\n".join(
                [f"{service.name}: {how}; its log, {log}, ends with:", *(f"  {line}" for line in lines[-TAIL_LINES:])]
            )
            port = getattr(stack, f"{service.name}_port", None)
            # The holder of the port may have left it again: what the service wrote counts as well.
            if ended and port is not None and (was_taken(lines, port) or not is_free(port)):
                raise _PortTakenError(message, service.name, port)
            raise StackError(message)
        time.sleep(POLL_SECONDS)


def _end_runs(stack: Stack, patience: float, report: Report) -> None:
    """Cancel the runs, and wait for their processes."""
    count = stop_runs(stack)
    if not count:
        return
    report(f"cancelling {count} run(s): each finishes its step and checkpoints (at most {patience:.0f} s)")
    deadline = time.monotonic() + patience
    while remaining := run_processes(stack):
        if all(is_flow(process) for process in remaining) and count_flow_runs(stack) is None:
            end_processes(remaining, POINTLESS_SECONDS)
            return
        if time.monotonic() > deadline:
            end_processes(remaining, END_SECONDS)
            ended = f"{len(set(remaining.values()))} run(s) were not ready after {patience:.0f} s and were ended"
            report(f"{ended}; their last checkpoint stays")
            return
        time.sleep(POLL_SECONDS)


def _end(stack: Stack, services: list[Service], patience: float) -> list[str]:
    """End services, the later started first, each with what descends from it; return the names of those that were running."""
    running = [service.name for service in services if stack.alive(service.name)]
    for name in running:
        end_processes(family(stack.processes[name]), patience)
    return running


def _forget(stack: Stack) -> None:
    stack.forget()
    remove_client_settings(stack)


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Keep a second `up` or `down` of the same folder out."""
    with open_lock(folder / "lock") as lock:
        if not try_lock(lock):
            raise StackError(f"{folder}: another `grpo up` or `grpo down` is at work here; wait for it")
        yield
