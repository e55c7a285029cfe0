"""Starts the processes of a training that has several, and ends as they do: `python -m grpo_core.parallel.launch RUN_DIR`.

It is the one child that whoever starts a training watches. On several nodes there is one of them on each, with torchrun's own
variables: PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT. Processes of a training come and end together: when one
has failed, the others are ended, and the first cause is in the journal, in the last line of standard error and in the exit
code. A request to end is handed on to them, and they agree on it. However this process ends, they end with it.
"""

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, GrpoError, JournalError
from grpo_core.machine.disk import remove
from grpo_core.machine.gpus import VISIBLE_VARIABLE, visible_gpus
from grpo_core.machine.process import end_with_parent, kill_itself, lifeline_from_environment, write_last_line
from grpo_core.parallel import Node, is_first_node, this_node
from grpo_core.parallel.reasons import Reason, leave_reason, read_reasons, told
from grpo_core.rewards.call_guard import FRAME
from grpo_core.run.child import (
    POLL_SECONDS,
    ChildLog,
    call_without_end,
    child_environment,
    interpreter,
    read_process_state,
)
from grpo_core.run.fit import will_use_gpu
from grpo_core.run.folder import RunDir, batch_limits
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Journal, read_records
from grpo_core.run.summary import run_status
from grpo_core.training import EVALUATE, LAUNCHER, TRAINING, training_arguments

PATIENCE_SECONDS = 10.0
"""From the failure of one process to the end of those that do not end by themselves: without it, none of them can save."""
STOPPED = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a training that has not failed."""


def variables(config: RunConfig, node: Node) -> list[dict[str, str]]:
    """Return the variables of each process of a node, as torchrun sets them; each sees one GPU, where there are any.

    Raises:
        ConfigError: the processes do not divide among the nodes, or the node has fewer GPUs.
    """
    size = config.training.processes
    local, rest = divmod(size, node.count)
    if rest:
        raise ConfigError(f"training.processes: {size} do not divide among {node.count} nodes (PET_NNODES)")
    gpus = visible_gpus() if will_use_gpu(config) else []
    if gpus and len(gpus) < local:
        raise ConfigError(f"training.processes: {local} on this node, which has {len(gpus)} GPU(s); each needs its own")
    common = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": local, **node.meeting}
    return [
        {name: str(value) for name, value in {**common, "RANK": node.index * local + index, "LOCAL_RANK": index}.items()}
        | ({VISIBLE_VARIABLE: gpus[index]} if gpus else {})
        for index in range(local)
    ]


class Ranks:
    """The processes of a training on this node, by rank; `told` is the number of the last signal that they were sent."""

    def __init__(self, arguments: Sequence[str], variables: Sequence[dict[str, str]]) -> None:
        """Start a process for each set of variables; call it from the main thread, with which they end."""
        lifeline, self.told = lifeline_from_environment(), 0
        self.processes = {
            int(own["RANK"]): subprocess.Popen(
                [sys.executable, "-m", TRAINING, *arguments],
                env={**os.environ, **own},
                pass_fds=() if lifeline is None else (lifeline,),
                process_group=0,  # a terminal's Ctrl-C comes from here, once
                preexec_fn=partial(end_with_parent, os.getpid()),  # noqa: PLW1509  (this process has one thread)
            )
            for own in variables
        }
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # one that comes before ends this process, and those
            signal.signal(number, self._hand_on)

    def _hand_on(self, number: int, _frame: FrameType | None) -> None:
        self.told = signal.SIGTERM if number == signal.SIGHUP else number
        if number == signal.SIGINT:  # a second one ends everything at once
            signal.signal(number, signal.SIG_DFL)
        for process in self.processes.values():
            process.send_signal(self.told)

    def failures(self, collective_seconds: float) -> Iterator[Reason]:
        """Wait for all of them; yield why each failed that did. Those that outlive others for too long are ended."""
        deadline, running = math.inf, dict(self.processes)
        while running:
            time.sleep(POLL_SECONDS / 5)
            is_over = time.monotonic() > deadline
            for rank in [rank for rank, process in running.items() if is_over or process.poll() is not None]:
                process = running.pop(rank)
                is_silent = process.poll() is None
                # It, or what a user's code has started in its group.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                has_failed = process.wait() not in STOPPED
                deadline = min(deadline, time.monotonic() + (PATIENCE_SECONDS if has_failed else collective_seconds))
                if has_failed:
                    yield _reason(rank, process.returncode, is_silent=is_silent)


def _reason(rank: int, code: int, *, is_silent: bool) -> Reason:
    if is_silent:
        return Reason(rank=rank, message="did not answer any more: it was stopped, or hangs", exit_code=1, kind="silent")
    if code > 0:
        return Reason(rank=rank, message=f"ended with exit code {code}; the log has its output", exit_code=code, kind="failed")
    message = f"was killed by {signal.Signals(-code).name}"
    return Reason(rank=rank, message=message, exit_code=128 - code, kind="aborted" if -code == signal.SIGABRT else "failed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a RUN_DIR with as many processes as it wants; return the exit code that one process would have had."""
    parser = argparse.ArgumentParser(prog=f"python -m {LAUNCHER}", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="folder with config.json and data/, which all nodes share")
    parser.add_argument(EVALUATE, nargs="?", const="", metavar="DIGEST", help="as in the training process")
    options = parser.parse_args(arguments)
    run_dir, own = RunDir(options.run_dir), training_arguments(options.run_dir, options.evaluate)
    try:
        run_dir.require_ours()
        num_records = len(check_run(run_dir).records)  # what is wrong with it is said once, and not by each process
        with this_node() as node:
            return _train(run_dir, own, node, num_records)
    except (GrpoError, OSError) as error:
        write_last_line(str(error))
        return getattr(error, "exit_code", JournalError.exit_code)


def _train(run_dir: RunDir, arguments: Sequence[str], node: Node, num_records: int) -> int:
    config = batch_limits(run_dir).applied(run_dir.read_config())
    own_variables = variables(config, node)
    if node.index == 0:
        remove(run_dir.ranks)
    log = ChildLog(run_dir.log_file("train"))
    ranks = Ranks(arguments, own_variables)
    failed = list(ranks.failures(config.training.collective_seconds))
    if not failed:
        return max(process.returncode for process in ranks.processes.values())
    frames = [line for line in log.read(last=True) if FRAME.fullmatch(line)]  # beside what the others have written since
    if (call := call_without_end(frames, log.file)) is not None and node.index == 0:  # it was of the first process
        failed = [replace(reason, message=call) if reason.rank == 0 else reason for reason in failed]
    for reason in failed:
        if not (run_dir.ranks / f"rank_{reason.rank}.json").exists():
            with contextlib.suppress(OSError):
                leave_reason(run_dir.ranks, reason)
    reasons = _all_reasons(run_dir.ranks, node) or failed
    code, message = reasons[0].exit_code, told(reasons, config.training.processes)
    records = read_records(run_dir.journal_file) if run_dir.journal_file.exists() else []
    has_ended = any(record.kind == "end" for record in records[num_records:])
    if has_ended or code == 128 + ranks.told:  # in the evaluation after the last step, which is made again; before the first
        kill_itself(code - 128 if code > 128 else signal.SIGKILL)
    if node.index == 0:
        rank = None if message == reasons[0].message else reasons[0].rank
        data = {"status": "failed", "reason": message, "rank": rank, "exit_code": code}
        with contextlib.suppress(JournalError), contextlib.closing(Journal(run_dir.journal_file)) as journal:
            journal.append("end", records[-1].step if records else 0, data)
    write_last_line(message)
    return code


def _all_reasons(folder: Path, node: Node) -> list[Reason]:
    """Return the reasons that processes have left; those of other nodes may come a while after their consequences here."""
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS
    while True:
        reasons = read_reasons(folder)
        if node.count == 1 or time.monotonic() > deadline or (reasons and reasons[0].kind == "failed"):
            return reasons
        time.sleep(POLL_SECONDS)


def join(run_dir: RunDir) -> None:
    """Become the launcher of this node, once that of the first node has started; return where the run is finished.

    The first node prepares what all need: the prompts and, in a cache that they share, the model.

    Raises:
        ConfigError: this is the first node.
        FolderError: another version made the folder.
        JournalError: the journal of the run is damaged.
    """
    if is_first_node():
        raise ConfigError("PET_NODE_RANK: is 0, the first node, which starts with `grpo train`; the others join it")
    while not run_dir.config_file.exists():
        time.sleep(POLL_SECONDS)
    if run_status(run_dir).state == "finished":
        return
    # The process ids of the first node say nothing here.
    while (state := read_process_state(run_dir.process_file)).pid is None or state.returncode is not None:
        time.sleep(POLL_SECONDS)
    program = interpreter(run_dir.read_config().training.python)
    os.execvpe(program, [program, "-m", LAUNCHER, str(run_dir.path), EVALUATE], child_environment())


if __name__ == "__main__":
    sys.exit(main())
