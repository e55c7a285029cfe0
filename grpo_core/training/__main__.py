"""The training process: `python -m grpo_core.training RUN_DIR`.

It knows a folder and nothing of Prefect or MLflow. Exit codes: 0 done (or stopped by STOP or the lifeline), 143 after SIGTERM,
130 after SIGINT, 1 or 2 after an error, whose message is in the journal's last record
and, on one line, the last of standard error.
"""

import argparse
import logging
import sys
import traceback
from pathlib import Path

from grpo_core.errors import GrpoError
from grpo_core.journal import Journal
from grpo_core.lifeline import lifeline_from_environment
from grpo_core.rundir import RunDir
from grpo_core.training.signals import StopRequest


def main(arguments: list[str] | None = None) -> int:
    """Train RUN_DIR to its last step, from its newest checkpoint if it has one; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m grpo_core.training", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="folder with config.json and data/")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)

    run_dir = RunDir(options.run_dir)
    stop = StopRequest(run_dir.stop_file, lifeline_from_environment())
    stop.install()
    journal = Journal(run_dir.journal_file)
    try:
        step, stopped = _run(run_dir, journal, stop)
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


def _run(run_dir: RunDir, journal: Journal, stop: StopRequest) -> tuple[int, str | None]:
    from grpo_core.policy.device import pin_threads
    from grpo_core.training.loop import train
    from grpo_core.training.session import FRESH, open_session

    threads = pin_threads(run_dir.read_config().training)
    session = open_session(run_dir, journal, stop)
    state = session.restore()
    facts = {"threads": threads, "device": str(session.policy.device), "steps": session.config.training.steps}
    journal.append("start" if state == FRESH else "resume", state.step, facts)
    state, stopped = train(session, state)
    return state.step, stopped


def _fail(journal: Journal, message: str, exit_code: int) -> int:
    journal.append("end", journal.last_step, {"status": "failed", "reason": message})
    sys.stderr.write(" ".join(message.split()) + "\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
