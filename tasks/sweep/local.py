"""Runs as processes of this machine: each is the command `grpo train` with an output file, and dies with the sweep.

A run whose sweep was killed loses its lifeline and ends at once, as if it had been killed itself; its training finishes the
step and checkpoints. Resuming the sweep resumes it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect.settings import PREFECT_API_URL

from grpo_core.config import load_config
from grpo_core.config.derived import starts_server
from grpo_core.generation.vllm.opening import SlotServers, VllmServer, server_settings
from grpo_core.machine.disk import append_private, private_folder
from grpo_core.machine.gpus import VISIBLE_VARIABLE, visible_gpus
from grpo_core.machine.process import LIFELINE_VARIABLE
from grpo_core.machine.slots import slot_limit
from grpo_core.run.child import python_path
from grpo_core.run.warm import Child, Ready
from grpo_core.sweep.campaign import Ended, Job, gpu_variables
from tasks.plain_logs import QUIET
from tasks.process.context import PART_VARIABLE, deployed_flow_run, is_deployed

COMMAND = "flows.cli"
IMPORTED = (
    "flows.cli.app",
    "flows.train",
    "flows.stack.embedded",
    "grpo_core.run_page.page",
    "mlflow.store.tracking.sqlalchemy_store",
)
"""By the command."""
STOPPED_EARLY = 3
"""Exit code of `grpo train` for a run that a rule, a person or a pruner has ended."""
STOP_SECONDS = 20.0
"""How long a cancelled sweep waits for its runs: Prefect kills its flow after 30 s."""
LOCK_SECONDS = 60.0
POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class _Child:
    job: Job
    process: Child
    gpus: Sequence[str]
    log_start: int
    """Where its output begins in the log file, after that of earlier sessions; in bytes."""
    server: VllmServer | None
    """That is lent to it."""


class LocalLauncher:
    """Starts processes."""

    outlives_the_sweep = False

    def __init__(
        self,
        concurrency: int,
        variables: Mapping[str, str] | None = None,
        server_logs: Path | None = None,
        processes: int = 1,
        runs: int = 0,
    ) -> None:
        """Expect so many runs at a time; they report to this process's Prefect API.

        Args:
            concurrency: runs at a time.
            variables: environment variables of every run.
            server_logs: folder for the output of the vLLM servers that it starts, each on the first GPU of its run; None = no
                run needs one.
            processes: of the run that has the most.
            runs: that are left to start; several are forks of one process, but where a slot or the run before decides about
                their GPU.
        """
        self._most, self._variables = concurrency * processes, dict(variables or {})
        self._children: list[_Child] = []
        gpus, named_by_slots = visible_gpus(), slot_limit() > 0
        self._gpus = () if named_by_slots else gpus
        """To choose from. On a stack, whose other runs it does not know, the slots that a run takes name its GPUs."""
        # Where a slot will name one of several GPUs, a run starts a server of its own there.
        self._servers, self._server_logs = SlotServers(), None if named_by_slots and len(gpus) > 1 else server_logs
        self._ready: Ready | None = None
        self._may_fork = runs > 1 and not (gpus or named_by_slots or is_deployed())
        self._lifeline = os.pipe()
        """Its write end is held by this process alone."""

    def start(self, job: Job) -> None:
        """Begin a run, or resume one that was begun before.

        The flow of an earlier session that still works on it has lost its lifeline, and is gone in a moment.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        while job.is_held and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        taken = [gpu for child in self._children for gpu in child.gpus]
        chosen = gpu_variables(self._gpus, taken, job.processes, self._most)
        gpus = chosen.get(VISIBLE_VARIABLE, "").split(",")
        server = self._lend_server(job, chosen and {**chosen, VISIBLE_VARIABLE: gpus[0]})
        variables = self._environment(self._lifeline[0]) | chosen | (server.lent() if server else {})
        run_dir, changes = str(job.run_dir.path), (f"{key}={json.dumps(value)}" for key, value in job.overrides.items())
        begun = ["train", str(job.base)] if job.fork is None else ["fork", str(job.fork[0]), "--at", str(job.fork[1])]
        command = ["train", "--resume", run_dir] if job.was_begun else [*begun, *changes, "--run-dir", run_dir]
        with append_private(job.log_file) as log:
            log_start = log.tell()
            process = self._started([COMMAND, *command], log.fileno(), variables)
        self._children.append(_Child(job=job, process=process, gpus=gpus, log_start=log_start, server=server))

    def _started(self, command: Sequence[str], log: int, variables: Mapping[str, str]) -> Child:
        """Start a command, as a fork of the process that is ready for all of them."""
        lifeline = self._lifeline[0]
        if self._may_fork and self._ready is None:
            self._ready = Ready({**QUIET, **variables}, IMPORTED)
        if self._ready is not None and (child := self._ready.start(command, log, lifeline, variables)) is not None:
            return child
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            pass_fds=(lifeline,),
            start_new_session=True,  # a terminal's Ctrl-C reaches the sweep alone, which asks its runs to stop
        )

    def _lend_server(self, job: Job, gpu: Mapping[str, str]) -> VllmServer | None:
        """Return a vLLM server for a run that needs one; None where its model is not here yet: then it starts its own."""
        from grpo_core.policy.sources.find import model_here

        if self._server_logs is None:
            return None
        config = load_config(str(job.base), job.overrides)
        model = model_here(config.model.source) if starts_server(config) else None
        if model is None:
            return None
        private_folder(self._server_logs)
        return self._servers.lend(server_settings(config, model, self._server_logs / f"{job.run_dir.path.name}.log"), gpu)

    def close(self) -> None:
        """End the vLLM servers, and the process that is ready."""
        if self._ready is not None:
            self._ready.end()
        self._servers.close()

    def poll(self) -> list[Ended]:
        """Return the runs that have ended since the last poll."""
        codes = [(child, child.process.poll()) for child in self._children]
        self._children = [child for child, code in codes if code is None]
        return [self._ended(child, code) for child, code in codes if code is not None]

    def _ended(self, child: _Child, code: int) -> Ended:
        """Return how a run ended; one that was killed, or whose server was lost, is worth another try."""
        failure = None
        if code < 0:
            failure = f"its flow was killed by {signal.Signals(-code).name}; its output is {child.job.log_file}"
        elif code not in (0, STOPPED_EARLY):
            output = child.job.log_file.read_bytes()[child.log_start :].decode(errors="replace")
            lines = [f"exit code {code}", *(line for line in output.splitlines() if line.strip())]
            failure = [*lines[-1:], *(line for line in lines if line.startswith("error: "))][-1].removeprefix("error: ")
        is_lost = code < 0 or (failure is not None and child.server is not None and not child.server.is_running)
        if child.server is not None:
            self._servers.give_back(child.server, is_sound=failure is None)
        return Ended(job=child.job, failure=failure, crashed=is_lost)

    def interrupt(self) -> None:
        """Ask all runs to finish their step and checkpoint; at a terminal that is waited for, unless it is asked again.

        With SIGTERM: in the background of a script SIGINT is ignored.
        """
        for child in self._children:
            child.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS if deployed_flow_run() is not None else None
        try:
            for child in self._children:
                child.process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return  # their flows end with this process, which is about to be killed; the trainings finish their step
        except BaseException:  # a second Ctrl-C or SIGTERM
            for child in self._children:
                child.process.kill()
            raise

    def _environment(self, lifeline: int) -> dict[str, str]:
        api = {"PREFECT_API_URL": str(address)} if (address := PREFECT_API_URL.value()) else {}
        return {
            # A run of its own, not a part of the deployment whose worker started the sweep, but within the same limits.
            **{key: value for key, value in os.environ.items() if not key.startswith("PREFECT__")},
            **({PART_VARIABLE: "1"} if is_deployed() else {}),
            **api,
            **self._variables,
            LIFELINE_VARIABLE: str(lifeline),
            "PYTHONPATH": python_path(),
            "PYTHONUNBUFFERED": "1",
        }
