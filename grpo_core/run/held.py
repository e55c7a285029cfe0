"""A run that is worked on: nobody else in its folder, and nothing left of the session before."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_core.errors import JournalError
from grpo_core.machine.locks import lock_holder
from grpo_core.run.flow_folder import holding
from grpo_core.run.folder import RunDir
from grpo_core.run.process_state import is_process_of

POLL_SECONDS = 0.5


@contextlib.contextmanager
def held_run(run_dir: RunDir, report: Callable[[str], None]) -> Iterator[None]:
    """Keep everybody else out of a run while inside, and begin without what an earlier session has left.

    A training whose parent process was killed is still finishing its step: it is waited for.

    Args:
        run_dir: the folder.
        report: takes a line about that wait.

    Raises:
        JournalError: a training that was started by hand works on the run.
        FolderError: the folder is not ours, or another process works on the run.
    """
    with holding(run_dir):
        _await_orphan(run_dir, report)
        run_dir.close_private_files()  # of an older version
        for leftover in (run_dir.stop_file, run_dir.process_file):
            leftover.unlink(missing_ok=True)
        yield


def _await_orphan(run_dir: RunDir, report: Callable[[str], None]) -> None:
    has_reported = False
    while (writer := lock_holder(run_dir.journal_file)) is not None:
        if not is_process_of(run_dir.process_file, writer) or not Path("/proc", writer.removeprefix("process ")).exists():
            raise JournalError(f"run dir {run_dir.path}: {writer} is writing its journal; wait for it, or end it first")
        if not has_reported:
            report(f"{writer}, a training whose parent process has died, is finishing its step; waiting for it")
            has_reported = True
        time.sleep(POLL_SECONDS)
