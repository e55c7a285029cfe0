"""The folder of a run that starts: marked as ours, held, and gone again if the start fails."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_core.machine.marker import Kind
from grpo_core.run.flow_folder import make_folder, starting
from grpo_core.run.folder import RunDir


@contextlib.contextmanager
def undone_unless_started(run_dir: RunDir, *, counts: Callable[[BaseException], bool]) -> Iterator[None]:
    """Remove the folder of a new run where what is inside fails before any process of the run was started.

    Args:
        run_dir: the folder, held by the caller.
        counts: whether an error is a failure; after an interruption the folder stays, to be resumed.

    Raises:
        BaseException: what was raised inside.
    """
    try:
        yield
    except BaseException as error:
        marker = run_dir.marker()
        if counts(error) and not run_dir.has_started and marker is not None and not marker.adopted:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        raise


@contextlib.contextmanager
def begun_run(run_path: Path | None, name: str, kind: Kind) -> Iterator[RunDir]:
    """Yield the folder of a run that starts, marked as ours and held, without what a start that came to nothing has left.

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
