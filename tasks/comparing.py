"""The runs that `grpo compare` is given: folders as they are, MLflow runs by their folder on this machine or from MLflow."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from grpo_core.compare.runs import Source
from tasks.tracking.fetch import fetch_records, find_folder, is_mlflow_run


@contextlib.contextmanager
def located_runs(given: Sequence[str]) -> Iterator[tuple[Source, ...]]:
    """Yield where each run lies; what is downloaded from MLflow is removed at the end.

    Args:
        given: folders of runs or sweeps, or MLflow run ids.

    Raises:
        TrackingError: MLflow cannot be reached, does not hold a run, or holds one that has not ended and lies elsewhere.
    """
    with tempfile.TemporaryDirectory(prefix="grpo-compare-") as downloads:
        yield tuple(_locate(name, Path(downloads)) for name in given)


def _locate(name: str, downloads: Path) -> Source:
    if not is_mlflow_run(name):
        return Source(given=name, path=Path(name))
    folder = find_folder(name)
    if folder is not None:
        return Source(given=name, path=folder)
    target = downloads / name
    if not target.exists():  # given twice
        fetch_records(name, target)
    return Source(given=name, path=target, is_downloaded=True)
