"""Task: validate the configuration and make the run's folder."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.config import find_origin
from grpo_core.rundir import RunDir

RUNS_FOLDER = Path("runs")


@task(name="open-run", cache_policy=NO_CACHE)
def open_run(config: str, overrides: Mapping[str, Any], run_path: Path | None) -> Path:
    """Return the folder of a new run with its resolved configuration.

    Raises:
        ConfigError: the configuration is refused.
        JournalError: the folder already holds a run.
    """
    resolved, origin = find_origin(config, overrides)
    path = run_path or make_folder(origin.preset)
    RunDir(path).create(resolved, origin)
    return path


def make_folder(name: str) -> Path:
    """Make a folder that nobody else has, named after the time and `name`: two runs may start in the same second."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        path = RUNS_FOLDER / (f"{stamp}-{name}" if number == 1 else f"{stamp}-{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return path
