"""A training as a process: from the command line to an exit code, whichever engine runs the steps.

It knows a folder and nothing of Prefect or MLflow. Exit codes: 0 done (or stopped by STOP or the lifeline), 143 after SIGTERM,
130 after SIGINT, 1 or 2 after an error, whose message is in the journal's last record and, on one line, the last of standard
error.
"""

import argparse
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.errors import ConfigError, GrpoError, JournalError
from grpo_core.journal import Journal, read_records
from grpo_core.lifeline import lifeline_from_environment
from grpo_core.rundir import RunDir
from grpo_core.training.signals import StopRequest

if TYPE_CHECKING:
    from grpo_core.policy.checkpoint import TrainingState
    from grpo_core.training.session import Session

Train = Callable[["Session", "TrainingState"], tuple["TrainingState", str | None]]
"""Runs the steps that are left; returns the last counters and why it stopped early, if it did."""

MODULES = {"native": "grpo_core.training", "trl": "grpo_core.backends"}
"""The module to run for each `training.engine`."""


def run(engine: str, load: Callable[[], Train], arguments: Sequence[str] | None = None) -> int:
    """Train the RUN_DIR of the command line to its last step, from its newest checkpoint if it has one; return the exit code.

    Args:
        engine: the `training.engine` that `load` gives.
        load: imports the engine; called once signals are heeded, since imports take seconds.
        arguments: of the command line; None = this process's.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {MODULES[engine]}", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="folder with config.json and data/")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)

    run_dir = RunDir(options.run_dir)
    stop = StopRequest(run_dir.stop_file, lifeline_from_environment())
    stop.install()
    try:
        journal = Journal(run_dir.journal_file)
    except JournalError as error:
        stop.close()
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    try:
        step, stopped = _run(run_dir, journal, stop, engine, load)
        journal.append("end", step, {"status": "stopped" if stopped else "finished", "reason": stopped})
        return stop.exit_code if stopped else 0
    except GrpoError as error:
        if options.debug:
            traceback.print_exc()
        return _fail(journal, str(error), error.exit_code)
    except Exception as error:  # noqa: BLE001  (the journal must say why a run ended, whatever it was)
        traceback.print_exc()
        return _fail(journal, f"{type(error).__name__}: {error}", GrpoError.exit_code)
    finally:
        stop.close()
        journal.close()


def _run(
    run_dir: RunDir, journal: Journal, stop: StopRequest, engine: str, load: Callable[[], Train]
) -> tuple[int, str | None]:
    from grpo_core.policy.device import pin_threads
    from grpo_core.training.session import FRESH, open_session

    config = run_dir.read_config()
    if config.training.engine != engine:
        wanted = config.training.engine
        raise ConfigError(f"training.engine: {wanted} is not the engine of this process; run python -m {MODULES[wanted]}")
    threads = pin_threads(config.training)
    train = load()
    session = open_session(run_dir, journal, stop)
    state = session.restore()
    facts = {"engine": engine, "threads": threads, "device": str(session.policy.device), "steps": config.training.steps}
    began = any(record.kind == "start" for record in read_records(run_dir.journal_file))
    # A run that was killed before its first checkpoint begins again, and takes back what it had journalled.
    journal.append("resume" if began or state != FRESH else "start", state.step, facts)
    state, stopped = train(session, state)
    return state.step, stopped


def _fail(journal: Journal, message: str, exit_code: int) -> int:
    journal.append("end", journal.last_step, {"status": "failed", "reason": message})
    sys.stderr.write(" ".join(message.split()) + "\n")
    return exit_code
