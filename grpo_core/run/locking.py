"""A run that starts or continues: nobody else in its folder, nothing left of the session before, no trace of a failed start."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_core.errors import JournalError
from grpo_core.machine.locks import lock_holder
from grpo_core.machine.marker import Kind
from grpo_core.run.flow_folder import holding, make_folder, starting
from grpo_core.run.folder import RunDir
from grpo_core.run.process_state import read_process_state

POLL_SECONDS = 0.5


@contextlib.contextmanager
def new_run(run_path: Path | None, name: str, kind: Kind) -> Iterator[RunDir]:
    """Yield the folder of a run that starts, marked as ours and locked, without what a start that came to nothing has left.

    Args:
        run_path: the folder; None = a new one, which is removed again where the start fails.
        name: of a new folder.
        kind: of the start.

    Raises:
        JournalError: the folder already holds a run.
        FolderError: it is not ours, or another flow starts or works in it.
    """
    if run_path is not None:
        RunDir(run_path).refuse_second_run()
    run_dir = RunDir(run_path or make_folder(name))
    try:
        with starting(run_dir, kind):
            run_dir.forget_start(run_dir.original, run_dir.source)  # of a reproduction or evaluation that never began, too
            yield run_dir
    except BaseException:
        if run_path is None:
            shutil.rmtree(run_dir.path)  # made a moment ago
        raise


@contextlib.contextmanager
def remove_if_never_started(run_dir: RunDir, *, counts: Callable[[BaseException], bool]) -> Iterator[None]:
    """Remove the folder of a new run where what is inside fails before any process of the run was started.

    Args:
        run_dir: the folder, locked by the caller.
        counts: whether an error is a failure; after an interruption the folder stays, to be resumed.

    Raises:
        BaseException: what was raised inside.
    """
    try:
        yield
    except BaseException as error:
        if counts(error) and not run_dir.has_started and run_dir.marker() is not None:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        raise


@contextlib.contextmanager
def lock_run(run_dir: RunDir, report: Callable[[str], None]) -> Iterator[None]:
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
        for leftover in (run_dir.stop_file, run_dir.process_file):
            leftover.unlink(missing_ok=True)
        yield


def _await_orphan(run_dir: RunDir, report: Callable[[str], None]) -> None:
    has_reported = False
    while (writer := lock_holder(run_dir.journal_file)) is not None:
        if writer != f"process {read_process_state(run_dir.process_file).pid}":
            raise JournalError(f"run dir {run_dir.path}: {writer} is writing its journal; wait for it, or end it first")
        if not has_reported:
            report(f"{writer}, a training whose parent process has died, is finishing its step; waiting for it")
            has_reported = True
        time.sleep(POLL_SECONDS)
