"""The folder of a run that starts: marked as ours, held, and gone again if the start fails."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from grpo_core.machine.marker import Kind
from grpo_core.run.flow_folder import make_folder, starting
from grpo_core.run.folder import RunDir


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
