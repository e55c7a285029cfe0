"""Task: validate the configuration and make the run's folder."""

from datetime import datetime
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.config import load_config
from grpo_core.rundir import RunDir

RUNS_FOLDER = Path("runs")


@task(name="open-run", cache_policy=NO_CACHE)
def open_run(config: str, overrides: dict[str, Any], run_path: Path | None) -> Path:
    """Return the folder of a new run with its resolved configuration.

    Raises:
        ConfigError: the configuration is refused.
        JournalError: the folder already holds a run.
    """
    resolved = load_config(config, overrides)
    path = run_path or _new_path(Path(config).stem)
    RunDir(path).create(resolved)
    return path


def _new_path(name: str) -> Path:
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    candidates = (RUNS_FOLDER / f"{stamp}-{name}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in candidates if not path.exists())
