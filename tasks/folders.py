"""Folders below `runs/`: a new one that nobody else has, or the one that an earlier attempt of this flow run has made."""

from datetime import datetime
from pathlib import Path

from prefect.runtime import flow_run

from grpo_core.errors import JournalError
from grpo_core.flowdir import FlowDir

RUNS_FOLDER = Path("runs")


def make_folder(name: str) -> Path:
    """Make a folder that nobody else has, named after the time and `name`: two runs may start in the same second.

    Raises:
        JournalError: nothing can be made below `runs/`.
    """
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        path = RUNS_FOLDER / (f"{stamp}-{name}" if number == 1 else f"{stamp}-{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise JournalError(f"{RUNS_FOLDER.resolve()}: no folder can be made in it ({error.strerror})") from error
        else:
            return path


def claim(path: Path) -> None:
    """Write down that a folder is this flow run's."""
    FlowDir(path).flow_run_file.write_text(f"{flow_run.id or ''}\n")


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
