"""Tasks: evaluate a policy, and train, each in a process that holds the GPU; in a run, the only sender of signals to it.

A child runs in a session of its own, so that what is sent to the flow's process group does not reach it twice. It holds one end
of a pipe, its lifeline: when the flow process dies, however it dies, the pipe closes and the child stops cleanly.
Its output goes to a file, which outlives both, and from there, line by line, to the flow run's log.
The training process of the native engine also evaluates the policies that it begins and ends with, which it has in memory; the
task of the first evaluation leaves it to that process where it can, that of the last makes it where it finds none.
"""

import contextlib
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import MissingContextError

from grpo_core.errors import TrainingError
from grpo_core.evaluation.held_out import MODULE, evaluate_if_needed, was_cut_short
from grpo_core.evaluation.results import HELD_OUT
from grpo_core.parallel import processes_here
from grpo_core.run.child import STOP_SECONDS, ChildLog, ensure_ended, finish_child, run_watched
from grpo_core.run.folder import RunDir, batch_limits
from grpo_core.run.rules import RunRules
from grpo_core.run.warm import Child
from grpo_core.training import training_arguments, training_module
from tasks.process.context import deployed_flow_run
from tasks.process.prefect_outage import cancel_watch
from tasks.run.inputs import cached_digest
from tasks.run.monitoring import announce_alone
from tasks.run.progress import say

INTERRUPTED = "interrupted: a training finishes its step and checkpoints before it ends; a second Ctrl-C or SIGTERM kills it\n"


@task(name="evaluate", task_run_name="evaluate-{policy}", cache_policy=NO_CACHE)
def evaluate_policy(run_path: Path, policy: Literal["base", "final"], set_name: str = HELD_OUT, step: int = 0) -> str:
    """Evaluate the initial policy (saved after `step`) or the newest checkpoint's on the held-out prompts.

    As `evaluate_if_needed`, which says what it returns, in a process of its own.
    """
    run_dir = RunDir(run_path)

    def evaluate(arguments: Sequence[str], log_file: Path) -> None:
        rules, python = RunRules(run_dir), run_dir.read_config().training.python

        def silent(seconds: float) -> None:  # it has no monitor
            for alert in rules.check_silence(seconds, policy):
                announce_alone(alert, run_dir)

        run_child(MODULE, arguments, log_file, python, silent=silent)

    with cancel_watch() as pause:
        return evaluate_if_needed(
            run_dir, policy, set_name, step, evaluate=evaluate, digest=cached_digest, wait=pause, report=say
        )


@task(name="train", cache_policy=NO_CACHE)
def run_training_process(run_path: Path, kept: str = "") -> None:
    """Run the training process to its end, from the newest checkpoint if there is one; a finished training stays as it is.

    One that is killed while it evaluates its last policy has trained to its end.

    Args:
        run_path: folder of the run.
        kept: what the task of the first evaluation has returned.

    Raises:
        TrainingError: it failed; the message says why.
    """
    from grpo_core.run.summary import run_status

    run_dir = RunDir(run_path)
    if run_status(run_dir).state == "finished":
        return
    config, what = batch_limits(run_dir).applied(run_dir.read_config()), training_arguments(run_path, kept)
    python, processes = config.training.python, processes_here(config.training.processes)
    try:
        run_child(training_module(config), what, run_dir.log_file("train"), python, run_dir.process_file, processes=processes)
    except TrainingError as error:
        if not was_cut_short(run_dir):
            raise
        say(f"evaluation of final: {error}; it is made again")


def release_monitor(run_path: Path) -> None:
    """Let the monitor end although the training never began (its task failed or was cancelled before it started a process)."""
    ensure_ended(RunDir(run_path).process_file)


def run_child(
    module: str,
    arguments: Sequence[str],
    log_file: Path,
    python: str | None = None,
    state_file: Path | None = None,
    *,
    silent: Callable[[float], object] = lambda _: None,
    processes: int = 1,
) -> None:
    """Run `python -m module arguments` to its end; stop it cleanly if this process is interrupted or its flow run cancelled.

    A training that is stopped in a long step is left to finish it: it checkpoints and ends by itself (`training/ending.py`).
    The arguments are those of `run_watched`.

    Raises:
        TrainingError: it ended with an exit code other than 0; the message is the last line that it wrote.
        RunCancelledError: the flow run was cancelled and Prefect did not deliver it.
    """
    log, logger = ChildLog(log_file), _logger()

    def forward(last: bool = False) -> None:
        for line in log.read(last=last):
            logger.info("%s: %s", log_file.stem, line)

    def look() -> None:
        pause()
        forward()

    with cancel_watch() as pause:
        try:
            run_watched(
                module,
                arguments,
                log_file,
                look=look,
                stop=_stop,
                report=say,
                silent=silent,
                python=python,
                state_file=state_file,
                processes=processes,
            )
        finally:
            forward(last=True)


def _logger() -> "logging.Logger | logging.LoggerAdapter[Any]":
    try:
        return get_run_logger()
    except MissingContextError:  # called outside a flow run
        return logging.getLogger(__name__)


def _stop(child: Child) -> None:
    """Ask a child that is still running to end: SIGTERM, which finishes the step and checkpoints.

    At a terminal its end is waited for, and a second Ctrl-C kills it. A worker's flow would itself be killed while it waits:
    it leaves the child to its end.
    """
    if deployed_flow_run() is None:
        finish_child(child, _tell)
    else:
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)


def _tell() -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        sys.stderr.write(INTERRUPTED)
