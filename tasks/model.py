"""Tasks: find the initial policy, and write down what the run is made with."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import ModelError
from grpo_core.rundir import RunDir
from tasks.caching import by_identity
from tasks.progress import say

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

    Loading the rewards here refuses a wrong import path before anything is trained. Where the run goes on, or repeats another,
    what differs from its first environment is said before anything starts.

    Raises:
        ModelError: a run that goes on would do so with another initial policy.
    """
    from grpo_core.policy.loading import resolve_model, weights_identity
    from grpo_core.provenance import collect_provenance, environment_differences, write_provenance
    from grpo_core.rewards.base import load_rewards

    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    load_rewards(config.rewards)
    folder = resolve_model(config.model.source, config.model.trust_remote_code)
    digest = digest_weights(folder, weights_identity(folder))
    provenance = collect_provenance(config.model_dump(mode="json"), data.digest, digest)
    goes_on, earlier = run_dir.provenance_file.exists(), _earlier_provenance(run_dir)
    if goes_on and earlier["model_digest"] != digest:
        raise ModelError(
            f"model.source {config.model.source}: its weights (SHA-256 {digest[:12]}) are not those with which this run began "
            f"({earlier['model_digest'][:12]}); restore them, or start a new run"
        )
    if earlier:
        for difference in environment_differences(earlier, asdict(provenance)):
            say(f"environment: {difference}")
            if goes_on:
                run_dir.add_alert(0, f"resumed in another environment: {difference}")
    if not goes_on:
        write_provenance(provenance, run_dir.provenance_file)
    return ModelFacts(folder=folder, digest=digest)


def _earlier_provenance(run_dir: RunDir) -> dict[str, Any]:
    """Return the provenance of the run that goes on or is repeated; empty where there is none."""
    for holder in (run_dir, RunDir(run_dir.original)):
        if holder.provenance_file.exists():
            facts: dict[str, Any] = json.loads(holder.provenance_file.read_text())
            return facts
    return {}


@task(name="digest-weights", cache_key_fn=by_identity, persist_result=True)
def digest_weights(folder: Path, identity: str) -> str:  # noqa: ARG001  (the cache key)
    """Return the SHA-256 of the weights in a folder; gigabytes are read once, not once a run."""
    from grpo_core.policy.loading import weights_digest

    return weights_digest(folder)
