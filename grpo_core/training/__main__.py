"""The training process: `python -m grpo_core.training RUN_DIR`, from the command line to an exit code, on either engine.

It knows a folder and nothing of Prefect or MLflow. Exit codes: 0 done (or stopped by STOP or the lifeline), 143 after SIGTERM,
130 after SIGINT, 1 or 2 after an error, whose message is in the journal's last record and, on one line, the last of standard
error.
"""

import argparse
import contextlib
import hashlib
import importlib
import logging
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import RunConfig, check_consistency
from grpo_core.config.derived import repeatability, weight_shards
from grpo_core.data.prompts import few_prompts
from grpo_core.errors import (
    ConfigError,
    DiskFullError,
    GrpoError,
    JournalError,
    MemoryFullError,
    SamplerError,
    TrainingError,
)
from grpo_core.machine.disk import free_bytes, is_full_disk
from grpo_core.machine.hardware import nccl_variables
from grpo_core.machine.process import ended_at_once, gc_paused, lifeline_from_environment, write_last_line
from grpo_core.parallel import is_first, is_one_of_several, local_processes
from grpo_core.parallel.reasons import leave_reason, reason_of
from grpo_core.policy.outline import unreached_by
from grpo_core.policy.saved import list_checkpoints, step_of
from grpo_core.run.child import import_as_at_start
from grpo_core.run.folder import PASSES_FIELD, RunDir, batch_limits
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Journal, read_records
from grpo_core.run.memory import acting_on, memory_need
from grpo_core.run.sizes import shape_for
from grpo_core.text import redact_uri
from grpo_core.training import EVALUATE, TRAINING
from grpo_core.training.ending import StopRequest, why_finished
from grpo_core.training.repeating import RepeatedJournal

if TYPE_CHECKING:
    from grpo_core.evaluation.runner import Evaluator
    from grpo_core.parallel.world import World
    from grpo_core.training.session import Session

ENGINES = {"native": "grpo_core.training.loop", "trl": "grpo_core.backends.trl"}
"""The module whose `run_steps` runs the steps that are left, for each `training.engine`."""
FOR_TRL = {
    "HF_HUB_DISABLE_TELEMETRY": "1",  # its trainer reports itself when it is made
    "CUDA_VISIBLE_DEVICES": "0",  # one training, one GPU; with several in sight it refuses to start
}
"""Set before it is imported; what the user has set stays."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a RUN_DIR to its last step, from its newest checkpoint if it has one; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {TRAINING}", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="folder with config.json and data/")
    parser.add_argument(
        EVALUATE, nargs="?", const="", help="evaluate the first and the last policy on the held-out prompts, too"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)

    run_dir = RunDir(options.run_dir)
    stop = StopRequest(run_dir.stop_file, lifeline_from_environment())
    try:
        run_dir.require_ours()  # nothing is written, and no checkpoint pruned, where another program keeps its files
        import_as_at_start(run_dir)
        if is_one_of_several():  # until they have met, a signal ends them: waiting for each other, they would not see it
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        else:
            stop.install()
        with contextlib.closing(Journal(run_dir.journal_file) if is_first() else UnwrittenJournal()) as journal:
            check_run(run_dir)
            try:
                if (reason := _repeat(run_dir, stop)) is not None:
                    journal.append("end", journal.last_step, {"status": "stopped", "reason": reason})
                    return stop.exit_code
                return _train(run_dir, journal, stop, evaluate=options.evaluate)
            except Exception as error:  # noqa: BLE001  (the journal must say why a run ended, whatever it was)
                return _fail(journal, error, run_dir)
    except (GrpoError, OSError) as error:  # nothing is added to the journal of such a run, not even that it failed
        sys.stderr.write(f"{error}\n")
        return getattr(error, "exit_code", JournalError.exit_code)


class UnwrittenJournal(Journal):
    """Takes the records of a process that writes none: of several, the first does."""

    def __init__(self) -> None:
        """Begin with no record."""
        self._number = self._whole_bytes = self.last_step = 0
        self._sum, self._one_at_a_time = hashlib.sha256(), threading.Lock()

    def _write(self, line: bytes, what: str) -> None:
        """Leave it."""

    def close(self) -> None:
        """Have nothing to close."""


def _repeat(run_dir: RunDir, stop: StopRequest) -> str | None:
    """Run the steps between a fork's checkpoint and its beginning again, in the folder of its parent, unless that is done.

    Returns:
        Why that was stopped, if it was.

    Raises:
        TrainingError: a step does not give the parent's figures again.
    """
    begun, parent = run_dir.read_origin().forked_from, RunDir(run_dir.parent)
    if begun is None:
        return None
    step = int(begun["step"] or 0)
    if step not in map(step_of, list_checkpoints(parent.checkpoints)):
        with contextlib.closing(
            RepeatedJournal(parent.journal_file, step, stop) if is_first() else UnwrittenJournal()
        ) as journal:
            _train(parent, journal, stop, evaluate=None)
        stop.also = None
    return None if step in map(step_of, list_checkpoints(parent.checkpoints)) else stop.reason() or "stopped"


def _train(run_dir: RunDir, journal: Journal, stop: StopRequest, *, evaluate: str | None) -> int:
    """Train, journal the end, evaluate the first and the last policy if that is wanted, and return the exit code."""
    config = run_dir.read_config()
    in_force = batch_limits(run_dir).applied(config)
    processes, shards = in_force.training.processes, weight_shards(in_force)
    is_native = config.training.engine == "native"
    with gc_paused():
        for name, value in () if is_native else FOR_TRL.items():
            os.environ.setdefault(name, value)
        from grpo_core.evaluation.runner import evaluate_initial
        from grpo_core.parallel.world import joined
        from grpo_core.policy.device import choose_kernels, held_device, pick_device, pin_threads
        from grpo_core.training.session import open_session

        engine = _engine(config.training.engine)
    threads = pin_threads(config.training)
    choose_kernels(deterministic=config.training.deterministic)
    device = pick_device(config.training.device)
    with held_device(device), joined(processes, shards, config.training.collective_seconds, device) as world:
        if is_one_of_several():
            stop.install()
        session = open_session(run_dir, journal, stop, world)
        state = session.restore()
        if not is_native and 0 < state.step < config.training.steps:
            raise TrainingError(
                "training.engine: trl begins at the first step and cannot resume from a checkpoint; start a new run"
            )
        if evaluate is not None and not stop.is_urgent:
            with ended_at_once():
                evaluate_initial(run_dir, session.evaluator, journal, evaluate)
        # A run that failed before its first checkpoint begins again: what it had journalled is superseded, too.
        began = any(record.kind == "start" for record in read_records(run_dir.journal_file))
        journal.append("resume" if began else "start", state.step, _facts(config, session, threads, state.step))
        with contextlib.closing(session):
            state, stopped = engine.run_steps(session, state)
        status = "stopped" if stopped else "finished"
        exit_code = world.agreed(stop.exit_code or None) or 0
        journal.append("end", state.step, {"status": status, "reason": stopped or why_finished(config.training, state)})
        journal.close()
        if world.on_first(lambda: evaluate is not None) and is_native:
            evaluator = session.evaluator
            del session  # the memory of its optimizer is the evaluation's
            _evaluate(run_dir, evaluator, state.step, stop)
    return exit_code if stopped else 0


def _engine(name: str) -> Any:
    """Return the module of an engine.

    Raises:
        ConfigError: what it needs is not installed.
    """
    try:
        return importlib.import_module(ENGINES[name])
    except ModuleNotFoundError as error:
        raise ConfigError(f"training.engine: {error}; pip install 'grpo-flow[trl]' installs what it needs") from error


def _evaluate(run_dir: RunDir, evaluator: "Evaluator", step: int, stop: StopRequest) -> None:
    """Evaluate the last policy, unless an end was asked for; whoever asks now ends the process at once."""
    from grpo_core.evaluation.runner import evaluate_trained

    with ended_at_once():
        if not evaluator.policy.world.agreed(stop.is_urgent or None):
            evaluate_trained(run_dir, evaluator, step)


def _facts(config: RunConfig, session: "Session", threads: int, step: int) -> dict[str, object]:
    """Return what the `start` and `resume` records say of how the run is computed after `step`, and of several processes."""
    from grpo_core.policy.loading import outline_of

    policy, limits, world, on_gpu = session.policy, session.batch_limits, session.world, session.policy.device.type == "cuda"
    in_force = limits.applied(config, step)
    needed = acting_on(in_force, on_gpu=on_gpu)
    shape = shape_for(needed)
    return {
        "engine": config.training.engine,
        "threads": threads,
        "device": str(policy.device),
        "deterministic": config.training.deterministic,
        "repeats": repeatability(in_force).what,
        **policy.path.as_json(),
        PASSES_FIELD: limits.after(step),
        "left_out": unreached_by(config, outline_of(policy.model)),
        "memory": None if shape is None else memory_need(needed, shape, padded=policy.path.padded).phases(),
        "warnings": [
            *check_consistency(config),
            *session.run_dir.read_origin().warnings,
            *few_prompts(config, len(session.train_prompts), len(session.eval_prompts)),
        ],
        "steps": config.training.steps,
        "forked_from": session.run_dir.read_origin().forked_from,
        "config": config.model_dump(mode="json"),
        **(_facts_of_several(world, on_gpu=on_gpu) if world.size > 1 else {}),
    }


def _facts_of_several(world: "World", *, on_gpu: bool) -> dict[str, object]:
    return {
        "processes": world.size,
        "shards": world.shards,
        "nodes": world.size // local_processes(),
        "backend": "nccl" if on_gpu else "gloo",
        "nccl": nccl_variables(),
    }


def _fail(journal: Journal, error: Exception, run_dir: RunDir) -> int:
    """Journal and print why the run ended; on a full disk the one or the other may not fit, and must not hide the other.

    One of several processes leaves its reason beside the journal: the one that started them knows what came first.
    """
    if not isinstance(error, GrpoError) and is_full_disk(error):
        error = DiskFullError(f"disk full: {error}")
    if isinstance(error, GrpoError):
        message, exit_code = _message(error, run_dir), error.exit_code
    else:
        message, exit_code = redact_uri(f"{type(error).__name__}: {error}"), GrpoError.exit_code
        traceback.print_exception(error)
    if is_one_of_several():
        with contextlib.suppress(OSError):
            leave_reason(run_dir.ranks, reason_of(error, message, exit_code))
    else:
        with contextlib.suppress(JournalError):
            journal.append("end", journal.last_step, {"status": "failed", "reason": message})
    write_last_line(message)
    if is_one_of_several():  # the end of a process may wait for others that wait for it
        os._exit(exit_code)
    return exit_code


def _message(error: GrpoError, run_dir: RunDir) -> str:
    """Return the message of an error; of what the run can be resumed after, with what is left of it and what to do."""
    if not isinstance(error, (DiskFullError, SamplerError, MemoryFullError)):
        return str(error)
    checkpoints = list_checkpoints(run_dir.checkpoints)
    newest = f"the newest whole checkpoint is {checkpoints[-1].name}" if checkpoints else "there is no checkpoint yet"
    command = f"grpo train --resume {shlex.quote(str(run_dir.path))}"
    if isinstance(error, MemoryFullError):
        field = "rollout_rows" if error.phase in ("rollout", "evaluation") else "microbatch_tokens"
        size = batch_limits(run_dir).after()[field]
        lower = f"training.{field} was {size}; resume with less: `{command} training.{field}={max(1, size // 2)}`"
        return f"{error}; {newest}, which stays; {lower}"
    if isinstance(error, DiskFullError):
        free = free_bytes(run_dir.path) / 2**20
        return f"{error}; {free:.1f} MiB are free; {newest}; free space, then resume with `{command}`"
    return f"{error}; {newest}; mend the cause, then resume with `{command}`"


if __name__ == "__main__":
    sys.exit(main())
