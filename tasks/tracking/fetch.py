"""Read back what an earlier run left in MLflow: its files, and where it is."""

import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.errors import ModelError, TrackingError, raised_as
from grpo_core.policy.sources.find import weights_digest
from grpo_core.run.flow_folder import FlowDir, mlflow_run_id
from grpo_core.run.folder import RunDir
from tasks.credentials import environment_uri
from tasks.tracking.store import default_uri, make_client

if TYPE_CHECKING:
    from grpo_core.compare.runs import Source

MLFLOW_RUN_ID = re.compile(r"[0-9a-f]{32}")
POLICY = "policy"
SETTINGS = ("config.json", "origin.json", "provenance.json", "data")
RECORDS = (*SETTINGS, "journal.jsonl")
IMAGES = "data/images"


def is_mlflow_run(name: str) -> bool:
    """Return whether a run that a user names is given by its id in MLflow; a folder of that name comes first."""
    return MLFLOW_RUN_ID.fullmatch(name) is not None and not Path(name).exists()


def fetch_policy(run_id: str, target: Path) -> tuple[RunDir, Path, int]:
    """Download configuration and frozen prompts of a run into `target`, and its policy unless it is still where it was saved.

    Returns:
        (a run dir with configuration and data, the folder of the policy, its step)

    Raises:
        TrackingError: MLflow cannot be reached, or the run is not a training of this project.
        ModelError: the run's policy is neither in MLflow nor where its tag says.
    """
    facts, run_dir = _download(run_id, target, SETTINGS), RunDir(target)
    run_dir.close_private_files()
    folder, is_here = Path(facts.tags.get("policy_path", "")), False
    with contextlib.suppress(ModelError, OSError):  # its weights are gone, or not ours to read
        is_here = "policy_path" in facts.tags and weights_digest(folder) == facts.tags.get("policy_digest")
    if not is_here:
        _download(run_id, target, (POLICY,))
        folder = target / POLICY
    if not folder.is_dir():
        raise ModelError(
            f"policy {run_id}: the weights are not in MLflow (tracking.log_policy was off, or the run was interrupted) and not "
            f"unchanged in {facts.tags.get('policy_path', 'a folder that it names')}; give a checkpoint"
        )
    return run_dir, folder, int(facts.metrics.get("progress/step", 0))


def fetch_records(run_id: str, target: Path) -> Any:
    """Download all that a run was made with, and its journal, into `target`, laid out as a run dir.

    Returns:
        the tags and figures of the run

    Raises:
        TrackingError: MLflow cannot be reached, the run is not a training of this project, or it has not ended yet.
    """
    facts = _download(run_id, target, RECORDS)
    if missing := [name for name in RECORDS if not (target / name).exists()]:
        raise TrackingError(f"run {run_id}: MLflow does not hold its {', '.join(missing)}; they come when a run ends")
    return facts


def find_folder(run_id: str) -> Path | None:
    """Return the folder of a run or sweep of MLflow where it is on this machine and still that run's; else None.

    Raises:
        TrackingError: MLflow cannot be reached, or does not hold the run.
    """
    with _reader(run_id) as client:
        tags = client.get_run(run_id).data.tags
    place = Path(tags.get("run_dir") or tags.get("sweep_dir") or "")
    return place if mlflow_run_id(FlowDir(place)) == run_id else None


def _download(run_id: str, target: Path, names: Sequence[str]) -> Any:
    """Download those of the named artifacts that there are; return what MLflow knows of the run beside its files.

    Images of prompts are those in the run's own folder, if that is on this machine.
    """
    target.mkdir(parents=True, exist_ok=True)
    with _reader(run_id) as client:
        run = client.get_run(run_id)
        present = {file.path for file in client.list_artifacts(run_id)}
        for name in present.intersection(names):
            client.download_artifacts(run_id, name, str(target))
    images = Path(run.data.tags.get("run_dir") or target) / IMAGES
    if (target / IMAGES).parent.is_dir() and images.is_dir() and not (target / IMAGES).exists():
        (target / IMAGES).symlink_to(images.resolve())  # whoever reads an image compares it with its name
    if "config.json" not in present:
        raise TrackingError(f"run {run_id}: this MLflow run has no config.json, so it is not a training of this project")
    return run.data


@contextlib.contextmanager
def _reader(run_id: str) -> Iterator[Any]:
    uri = environment_uri() or default_uri(Path("runs"))
    what = f"run {run_id}: cannot be read from MLflow at {uri} ({{cause}}); set MLFLOW_TRACKING_URI to its store"
    with raised_as(TrackingError, what, Exception):
        yield make_client(uri, create=False)


@contextlib.contextmanager
def located_runs(given: Sequence[str]) -> Iterator[tuple["Source", ...]]:
    """Yield where each run lies; what is downloaded from MLflow is removed at the end.

    Args:
        given: folders of runs or sweeps, or MLflow run ids.

    Raises:
        TrackingError: MLflow cannot be reached, does not hold a run, or holds one that has not ended and lies elsewhere.
    """
    from grpo_core.compare.runs import Source

    with tempfile.TemporaryDirectory(prefix="grpo-compare-") as downloads:
        places = {name: find_folder(name) if is_mlflow_run(name) else Path(name) for name in given}
        for name in [name for name, place in places.items() if place is None]:
            fetch_records(name, Path(downloads, name))
        yield tuple(
            Source(given=name, path=places[name] or Path(downloads, name), is_downloaded=places[name] is None) for name in given
        )
