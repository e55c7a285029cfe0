"""Read back what an earlier run left in MLflow."""

import os
from collections.abc import Mapping
from pathlib import Path

from grpo_core.errors import ModelError, TrackingError
from grpo_core.rundir import RunDir
from tasks.tracking.store import default_uri, make_client, short_retries

POLICY = "policy"


def fetch_run(run_id: str, target: Path) -> tuple[RunDir, Path, int]:
    """Download configuration and frozen prompts of a run into `target`, and its policy unless it is still where it was saved.

    Returns:
        (a run dir with configuration and data, the folder of the policy, its step)

    Raises:
        TrackingError: MLflow cannot be reached, or the run is not a training of this project.
        ModelError: the run's policy is neither in MLflow nor where its tag says.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or default_uri(Path("runs"))
    target.mkdir(parents=True, exist_ok=True)
    try:
        with short_retries():
            client = make_client(uri)
            run = client.get_run(run_id)
            present = {file.path for file in client.list_artifacts(run_id)}
            saved = _saved_policy(run.data.tags)
            for name in ("config.json", "origin.json", "data", *(() if saved else (POLICY,))):
                if name in present:
                    client.download_artifacts(run_id, name, str(target))
    except Exception as error:  # mlflow raises unrelated types for each store
        cause = " ".join(str(error).split())[:300]
        raise TrackingError(
            f"policy {run_id}: cannot be read from MLflow at {uri} ({cause}); set MLFLOW_TRACKING_URI to its store"
        ) from error
    if "config.json" not in present:
        raise TrackingError(f"policy {run_id}: this MLflow run has no config.json, so it is not a training of this project")
    folder = saved or target / POLICY
    if not folder.is_dir():
        raise ModelError(
            f"policy {run_id}: the weights are not in MLflow (tracking.log_policy was off, or the run was interrupted) and not "
            f"unchanged in {run.data.tags.get('policy_path', 'a folder that it names')}; give a checkpoint"
        )
    return RunDir(target), folder, int(run.data.metrics.get("progress/step", 0))


def _saved_policy(tags: Mapping[str, str]) -> Path | None:
    """Return the folder where the run saved its policy, if it is on this machine and unchanged."""
    from grpo_core.policy.loading import weights_digest

    folder = Path(tags.get("policy_path", ""))
    unchanged = "policy_path" in tags and folder.is_dir() and weights_digest(folder) == tags.get("policy_digest")
    return folder if unchanged else None
