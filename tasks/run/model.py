"""Tasks: find the initial policy, and write down what the run is made with."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import ModelError
from grpo_core.run.alerts import add_alert, monitor_alerts
from grpo_core.run.folder import RunDir
from tasks.run.caching import by_identity, prepared_once
from tasks.run.progress import say

if TYPE_CHECKING:
    from grpo_core.data.frozen import DataManifest


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The initial policy."""

    folder: Path
    digest: str
    """SHA-256 of its weight files."""


@task(name="prepare-model", cache_policy=NO_CACHE)
def prepare_model(run_path: Path, data: "DataManifest") -> ModelFacts:
    """Resolve the model (converting or downloading it where needed), load the rewards once, write provenance.json.

    Loading the rewards here refuses a wrong import path before anything is trained. If the run is resumed, or repeats
    another, what differs from its first environment is printed before anything starts.

    Raises:
        ModelError: a resumed run would continue with another initial policy.
    """
    from grpo_core.policy.sources.find import resolve_model
    from grpo_core.rewards.base import load_rewards
    from grpo_core.run.provenance import collect_provenance, environment_differences, write_provenance

    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    load_rewards(config.rewards)
    folder = resolve_model(config.model.source, config.model.trust_remote_code)
    digest = cached_digest(folder)
    provenance = collect_provenance(config.model_dump(mode="json"), data.digest, digest)
    is_resumed = run_dir.provenance_file.exists()
    earlier = run_dir.read_provenance() or RunDir(run_dir.original).read_provenance()
    if is_resumed and earlier["model_digest"] != digest:
        raise ModelError(
            f"model.source {config.model.source}: its weights (SHA-256 {digest[:12]}) are not those with which this run began "
            f"({earlier['model_digest'][:12]}); restore them, or start a new run"
        )
    if earlier:
        known = {raised.text for raised in monitor_alerts(run_dir)}
        for difference in environment_differences(earlier, provenance):
            say(f"environment: {difference}")
            alert = f"resumed in another environment: {difference}"
            if is_resumed and alert not in known:
                add_alert(run_dir, 0, alert)
    if not is_resumed:
        write_provenance(provenance, run_dir.provenance_file)
    return ModelFacts(folder=folder, digest=digest)


def cached_digest(folder: Path) -> str:
    """Return the SHA-256 of the weights in a folder, from the cache where they are those of an earlier run."""
    from grpo_core.policy.loading import weights_identity

    identity = weights_identity(folder)
    with prepared_once(identity):
        return digest_weights(folder, identity)


@task(name="digest-weights", cache_key_fn=by_identity, persist_result=True)
def digest_weights(folder: Path, identity: str) -> str:  # noqa: ARG001  (the cache key)
    """Return the SHA-256 of the weights in a folder; gigabytes are read once, not once a run."""
    from grpo_core.policy.loading import weights_digest

    return weights_digest(folder)
