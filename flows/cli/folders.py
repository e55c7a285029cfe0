"""The first line of a command that runs something, its folder, and the last line where it did not finish: how to resume."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from flows.terminal import echo
from grpo_core.run.flow_folder import Kind, make_folder
from grpo_core.run.folder import RunDir
from grpo_core.sweep.folder import SweepDir

RESUME = "resume with: "
OF_MODEL = "model."
"""How messages about a model that cannot be used begin: with the key that names it."""


_left: list[tuple[Path, BaseException]] = []
"""At most one: the folder of the command that this process runs, which is about to end, and with what."""


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Print the folder of a run or sweep; where what is inside ends with an error, `print_how_to_resume` has it."""
    echo(f"{'folder':10}{folder}")
    try:
        yield
    except BaseException as error:
        _left[:] = [(folder, error)]
        raise


@contextlib.contextmanager
def working_in_new(folder: Path | None, name: str, kind: Kind) -> Iterator[Path]:
    """Yield the folder of a run or sweep that begins, after printing it.

    Args:
        folder: where it is to be; None = a new folder below `runs/`, which is removed again where nothing is begun in it.
        name: of a new folder.
        kind: of what begins.

    Raises:
        JournalError, SweepError: the folder already holds a run or sweep.
    """
    path = folder or make_folder(name)
    flow_dir: SweepDir | RunDir = SweepDir(path) if kind == "sweep" else RunDir(path)
    if isinstance(flow_dir, SweepDir):
        flow_dir.refuse_second_sweep()
    else:
        flow_dir.refuse_second_run()
    try:
        if folder is None:
            flow_dir.mark(kind)  # now: what a kill in the next seconds leaves is listed by `grpo clean`
        with working_in(flow_dir.path):
            yield flow_dir.path
    except BaseException:
        if folder is None and not _has_begun(flow_dir) and flow_dir.path.exists():
            shutil.rmtree(flow_dir.path, ignore_errors=True)  # made a moment ago
        raise


def print_how_to_resume() -> None:
    """Print the command that resumes what this process's command has left unfinished, if there is anything to resume."""
    for path, error in _left:
        if str(error).startswith(OF_MODEL) and not RunDir(path).checkpoints.exists():
            continue  # the same configuration would meet the same model
        from grpo_core.sweep.status import command_that_resumes  # loads pandas: not for a command that left nothing

        command = command_that_resumes(path, has_prompts=isinstance(error, Exception))
        with contextlib.suppress(OSError):  # nobody reads standard error any more
            if command is not None:
                echo(f"{RESUME}{command}", err=True)


def _has_begun(flow_dir: SweepDir | RunDir) -> bool:
    return (flow_dir.sweep_file if isinstance(flow_dir, SweepDir) else flow_dir.config_file).exists()
