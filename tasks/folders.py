"""Folders and flow runs: what an earlier attempt of this flow run has made, and where deployed flows may write."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from prefect.runtime import flow_run

from grpo_core.machine.disk import write_whole
from grpo_core.run.flow_folder import ROOTS_VARIABLE, RUNS_FOLDER, FlowDir, Kind, allowed_roots, refuse_foreign_root
from grpo_core.run.folder import RunDir
from grpo_core.run.resuming import new_run as locked_new_run
from tasks.process.context import is_deployed


@contextlib.contextmanager
def new_run(run_path: Path | None, name: str, kind: Kind) -> Iterator[RunDir]:
    """Do as `grpo_core.run.resuming.new_run`, and claim the folder for this flow run at the end."""
    with locked_new_run(run_path, name, kind) as run_dir:
        yield run_dir
        claim(run_dir.path)


def claim(path: Path) -> None:
    """Write down that a folder is this flow run's."""
    write_whole(FlowDir(path).flow_run_file, f"{flow_run.id or ''}\n")


def folder_of_this_flow_run(only: Path | None) -> Path | None:
    """Return the folder that an earlier attempt of this flow run has made; None where this is the first.

    Args:
        only: the one folder that it can be; None = any below `runs/`.
    """
    if not flow_run.id or flow_run.run_count < 2:
        return None
    for path in (only,) if only is not None else sorted(RUNS_FOLDER.glob("*/")):
        file = FlowDir(path).flow_run_file
        if file.exists() and file.read_text().strip() == flow_run.id:
            return path
    return None


def check_root(path: Path | None, parameter: str) -> Path | None:
    """Return a folder that a flow was given; one of a deployed flow must lie below the roots that its worker allows.

    Raises:
        FolderError: it lies elsewhere.
    """
    if path is not None and is_deployed():
        refuse_foreign_root(path, allowed_roots(os.environ.get(ROOTS_VARIABLE)), parameter)
    return path
